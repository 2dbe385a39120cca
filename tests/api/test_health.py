from typing import get_args

import pytest
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient, Response

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


@pytest.mark.parametrize("state", get_args(State))
def test_only_up_and_idle_at_zero_are_ready(state: State) -> None:
    assert ModelReadiness("a", state).ready is (state in {"up", "idle_at_zero"})


async def test_ready_if_every_model_is_up_or_idle() -> None:
    reply = await get(
        "/ready",
        ModelReadiness(
            "a", "up", replicas=2, target_replicas=3,
            warm_node=True, warm_node_start_s=3.4, cold_node_start_s=41.2,
        ),
        ModelReadiness("b", "idle_at_zero"),
    )  # fmt: skip

    assert reply.status_code == 200
    assert reply.json()["ready"] is True
    assert reply.json()["models"]["a"] == {
        "state": "up",
        "replicas": 2,
        "target_replicas": 3,
        "phase": None,
        "phase_seconds": None,
        "reason": None,
        "startup_seconds": {},
        "replicas_out": {},
        "warm_node": True,
        "warm_node_start_s": 3.4,
        "cold_node_start_s": 41.2,
    }
    assert reply.json()["zygote"] is True


async def test_not_ready_names_the_model_and_reason() -> None:
    loading = ModelReadiness(
        "b", "loading", phase="weights_and_kv_cache", phase_seconds=3.5, startup_seconds={"imports": 7.25}
    )

    reply = await get("/ready", ModelReadiness("a", "up", replicas=1, target_replicas=1), loading)

    assert reply.status_code == 503
    assert reply.json()["ready"] is False
    assert reply.json()["models"]["a"]["state"] == "up"
    assert reply.json()["models"]["b"] == {
        "state": "loading",
        "replicas": 0,
        "target_replicas": 0,
        "phase": "weights_and_kv_cache",
        "phase_seconds": 3.5,
        "reason": None,
        "startup_seconds": {"imports": 7.25},
        "replicas_out": {},
        "warm_node": None,
        "warm_node_start_s": None,
        "cold_node_start_s": None,
    }


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
