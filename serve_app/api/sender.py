"""The sender of a request: its API key, its lane, and what it brought beside its body."""

import time
from dataclasses import dataclass, field

from fastapi import Request

from serve_app.api.errors import ApiError
from serve_app.api.ray_headers import request_timeout_s
from serve_app.api.request_trace import UNTRACED, Trace
from serve_app.api.trace_context import TraceContext
from serve_app.settings.caller import ANYONE, LANES, Caller, Lane
from serve_app.settings.keys_file import ApiKey
from serve_app.settings.settings_error import shown

LANE_HEADER = "X-Tideserve-Lane"
"""With this header a client lowers the lane of a request."""


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sent a request, and what it brought beside its body."""

    request_id: str
    caller: Caller = ANYONE
    key: ApiKey | None = None
    """The entry of its API key; None on a server without keys."""
    cache_salt: str = field(default="", repr=False)
    arrived: float = field(default_factory=time.perf_counter)
    timeout_s: float | None = None
    """Its deadline, in seconds after its arrival; None without one."""
    trace: Trace = UNTRACED
    context: TraceContext | None = None

    @property
    def group(self) -> str | None:
        """The group of its body in `BodyMemory`; None until its model is known."""
        return None if self.key is None else f"API key {self.key.name!r}"


def sender_of(http: Request) -> Sender:
    """Return the sender of an HTTP request. Raises ApiError 400 for a lane that does not exist."""
    state = http.state
    return Sender(
        state.request_id,
        _lowered(getattr(state, "caller", ANYONE), http),
        key_of(http),
        getattr(state, "cache_salt", ""),
        state.arrived,
        request_timeout_s(http.scope),
        getattr(state, "trace", UNTRACED),
        TraceContext.of(http.scope["headers"]),
    )


def key_of(http: Request) -> ApiKey | None:
    """Return the entry of the client's API key; None on a server without keys."""
    found: ApiKey | None = getattr(http.state, "key", None)
    return found


def _lowered(caller: Caller, request: Request) -> Caller:
    """Return the caller in the lane that the client asks for, if it is lower. Raises ApiError 400."""
    asked = request.headers.get(LANE_HEADER)
    if asked is None:
        return caller
    lane: Lane | None = next((each for each in LANES if each == asked), None)
    if lane is None:
        known = ", ".join(LANES)
        raise ApiError(400, f"{LANE_HEADER} = {shown(asked)}: must be one of {known}", code="invalid_value")
    return caller.lowered_to(lane)
