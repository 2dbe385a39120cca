"""The engine's contract: requests, errors, and trace contexts as W3C's standard has them."""

import json

import pytest

from serve_app.api.dialect import ColdWait
from serve_app.api.engine_client import EngineRequest
from serve_app.api.errors import ApiError
from serve_app.api.trace import TraceContext


@pytest.mark.parametrize(("eta_s", "eta"), [(None, b"unknown"), (0.0, b"0"), (12.1, b"13")])
def test_a_wait_is_told_in_a_comment_that_parsers_skip(eta_s: float | None, eta: bytes) -> None:
    wait = ColdWait("org/tide", "weights_and_kv_cache", eta_s, 7.9)

    assert wait.comment() == (
        b": waiting for a replica of org/tide: phase=weights_and_kv_cache eta_s=" + eta + b" waited_s=7\n\n"
    )


def test_comment_gives_the_place_in_the_line() -> None:
    wait = ColdWait("tide", "pending_capacity", 70.0, 5.0, place=3)

    assert wait.comment() == (
        b": waiting for a replica of tide: phase=pending_capacity eta_s=70 waited_s=5 place=3\n\n"
    )


def test_comment_gives_the_reason_in_a_line_of_its_own() -> None:
    wait = ColdWait("tide", "rollout_failed", None, 5.0, "the last rollout failed:\r\nno\nsuch setting")

    assert wait.comment() == (
        b": waiting for a replica of tide: phase=rollout_failed eta_s=unknown waited_s=5\n"
        b": the last rollout failed: no such setting\n\n"
    )


def test_equality_of_requests_ignores_time_and_state() -> None:
    early = EngineRequest("generate", b"{}", "r", 1.0, queued_s=1.0)
    assert early == EngineRequest("generate", b"{}", "r")


def test_a_released_body_leaves_its_size() -> None:
    request = EngineRequest("generate", b"{}", "r")
    request.release_body()
    assert (request.body, request.body_bytes) == (b"", 2)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid_request_error"), (499, "invalid_request_error"), (500, "server_error")],
)
def test_error_has_openais_four_fields_and_its_frames(status: int, kind: str) -> None:
    error = ApiError(status, "first line\n\nsecond line", param="model", code="any")

    assert json.loads(error.body()) == {
        "error": {"message": "first line\n\nsecond line", "type": kind, "param": "model", "code": "any"}
    }
    assert error.last_frames() == b"event: error\ndata: " + error.body() + b"\n\ndata: [DONE]\n\n"
    assert error.frame().count(b"\n\n") == 1  # line breaks of the message are escaped


TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


def of(parent: str = PARENT, *states: str) -> TraceContext | None:
    headers = [(b"host", b"tide"), (b"traceparent", parent.encode("latin-1"))]
    return TraceContext.of([*headers, *((b"tracestate", state.encode("latin-1")) for state in states)])


def state(*states: str) -> str:
    found = of(PARENT, *states)
    assert found is not None
    assert found.traceparent == PARENT  # whatever is wrong with the state
    return found.tracestate


def test_a_valid_context_is_passed_on_as_it_came() -> None:
    found = of(PARENT, "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE")

    assert found == TraceContext(PARENT, "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE")
    assert found.trace_id == TRACE
    assert found.headers() == [
        (b"traceparent", PARENT.encode()),
        (b"tracestate", b"rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"),
    ]
    assert TraceContext.of(found.headers()) == found


@pytest.mark.parametrize(
    "parent",
    [
        "",
        PARENT.upper(),
        PARENT[:-1],
        PARENT + "0",
        PARENT + "-",
        PARENT + "-what",  # version 00 has nothing more
        "ff" + PARENT[2:],
        "0" + PARENT,
        PARENT.replace("-", "_"),
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}.-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-0x",
        f"cc-{TRACE}-{SPAN}-01.what",  # of a later version, with no dash before what is new
        PARENT + "\n",
        PARENT[:-1] + "²",
    ],
)
def test_what_is_malformed_is_ignored_with_its_state(parent: str) -> None:
    assert of(parent, "a=1") is None


def test_two_parents_are_none() -> None:
    assert TraceContext.of([(b"traceparent", PARENT.encode())] * 2) is None


@pytest.mark.parametrize(
    ("rest", "flags"), [("-01", "01"), ("-02", "00"), ("-01-what", "01"), ("-03-", "01")]
)
def test_only_known_parts_of_a_later_version_are_forwarded(rest: str, flags: str) -> None:
    assert of(f"cc-{TRACE}-{SPAN}{rest}") == TraceContext(f"00-{TRACE}-{SPAN}-{flags}")


@pytest.mark.parametrize(
    ("states", "joined"),
    [
        (["a=1", "b=2"], "a=1,b=2"),  # several headers are one list
        (["a=1, b=2\t,c=3"], "a=1,b=2,c=3"),
        (["a=1,,b=2,", ""], "a=1,b=2"),  # empty entries are allowed
        (["z" * 256 + "=" + "v" * 256], "z" * 256 + "=" + "v" * 256),
        (["0" * 241 + "@" + "s" * 14 + "=v"], "0" * 241 + "@" + "s" * 14 + "=v"),
        (["a-_*/1= ~x"], "a-_*/1= ~x"),
    ],
)
def test_a_valid_state_is_one_list(states: list[str], joined: str) -> None:
    assert state(*states) == joined


@pytest.mark.parametrize(
    "given",
    [
        "a",
        "a=",
        "=1",
        "A=1",
        "0=1",  # only a tenant may begin with a digit
        "a=1=2",
        "a=\x01",
        "a=ü",
        "a b=1",
        "a=1,a=2",
        "a=1,b",
        "z" * 257 + "=v",
        "z=" + "v" * 257,
        "t" * 242 + "@s=v",
        "t@" + "s" * 15 + "=v",
        "t@1=v",
        ",".join(f"k{n}=v" for n in range(33)),
    ],
)
def test_a_malformed_state_is_left_out_whole(given: str) -> None:
    assert state(given) == ""
