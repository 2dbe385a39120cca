from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import pytest
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient, Response

import serve_app
from serve_app.api.health import ControlPlane, ModelReadiness, Readiness, State, health_router


class StubObserver:
    def __init__(self, *models: ModelReadiness) -> None:
        self._models = list(models)

    async def readiness(self) -> Readiness:
        return Readiness(self._models, zygote=True)

    async def metrics(self) -> bytes:
        return b"# HELP llm_queue_depth Waiting.\n"


async def get(path: str, *models: ModelReadiness) -> Response:
    app = FastAPI()
    app.include_router(health_router(StubObserver(*models)))
    async with AsyncClient(transport=ASGITransport(app), base_url="http://tide") as client:
        return await client.get(path)


async def test_the_version_is_vllms_beside_our_own() -> None:
    found = find_spec("vllm")  # importing it takes seconds
    assert found is not None
    assert found.origin is not None
    installed = Path(found.origin).with_name("_version.py").read_text()

    version = (await get("/version")).json()

    assert f"__version__ = version = '{version['version']}'" in installed
    assert version["tideserve"] == serve_app.__version__


@pytest.mark.parametrize("state", get_args(State))
async def test_only_up_and_idle_at_zero_are_ready(state: State) -> None:
    reply = await get("/ready", ModelReadiness("a", "up"), ModelReadiness("b", state))

    ready = state in {"up", "idle_at_zero"}
    assert (reply.status_code, reply.json()["ready"]) == (200 if ready else 503, ready)


async def test_readiness_has_all_that_is_known_of_a_model() -> None:
    reply = await get(
        "/ready",
        ModelReadiness(
            "a", "up", replicas=2, target_replicas=3,
            warm_node=True, warm_node_start_s=3.4, cold_node_start_s=41.2,
        ),
        ModelReadiness("b", "loading", phase="warm_up", phase_seconds=3.5, startup_seconds={"imports": 7.25}),
    )  # fmt: skip

    loading = reply.json()["models"]["b"]
    assert (loading["phase"], loading["phase_seconds"]) == ("warm_up", 3.5)
    assert loading["startup_seconds"] == {"imports": 7.25}
    assert reply.json()["models"]["a"] == {
        "state": "up",
        "replicas": 2,
        "target_replicas": 3,
        "phase": None,
        "phase_seconds": None,
        "reason": None,
        "startup_seconds": {},
        "replicas_out": {},
        "first_runs_left": [],
        "warm_node": True,
        "warm_node_start_s": 3.4,
        "cold_node_start_s": 41.2,
    }
    assert reply.json()["zygote"] is True


async def test_a_version_that_is_not_ready_does_not_matter() -> None:
    version = ModelReadiness("a@new", "loading", phase="imports", version_of="a")
    reply = await get("/ready", ModelReadiness("a", "up"), version)

    assert (reply.status_code, reply.json()["ready"]) == (200, True)
    assert reply.json()["models"]["a@new"]["version_of"] == "a"


async def test_metrics_come_in_the_text_format_prometheus_reads() -> None:
    reply = await get("/metrics")

    assert reply.content == b"# HELP llm_queue_depth Waiting.\n"
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


@pytest.mark.parametrize(
    ("controller_age_s", "gcs_age_s", "reachable", "age_s", "reason"),
    [
        (0.25, 0.5, True, 0.5, None),
        (12.34, 0.5, False, 12.34, "Ray Serve's controller has not answered for 12.3 s"),
        (0.25, 2.1, False, 2.1, "Ray's GCS has not answered for 2.1 s"),
        (None, 0.5, False, None, "Ray Serve's controller has not answered yet"),
    ],
)
def test_control_plane_is_reachable_for_two_seconds(
    controller_age_s: float | None, gcs_age_s: float, reachable: bool, age_s: float | None, reason: str | None
) -> None:
    assert ControlPlane(controller_age_s, gcs_age_s, 2.0).document() == {
        "reachable": reachable,
        "age_s": age_s,
        "controller_age_s": controller_age_s,
        "gcs_age_s": gcs_age_s,
        "reason": reason,
    }
