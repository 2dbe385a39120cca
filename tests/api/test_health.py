from __future__ import annotations

from typing import get_args

import pytest
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient, Response

from serve_app.api.health import ModelReadiness, State, health_router


class StubObserver:
    def __init__(self, *models: ModelReadiness) -> None:
        self._models = list(models)

    async def readiness(self) -> list[ModelReadiness]:
        return self._models

    async def metrics(self) -> bytes:
        return b"# HELP llm_queue_depth Waiting.\n"


async def get(path: str, *models: ModelReadiness) -> Response:
    app = FastAPI()
    app.include_router(health_router(StubObserver(*models)))
    async with AsyncClient(transport=ASGITransport(app), base_url="http://tide") as client:
        return await client.get(path)


@pytest.mark.parametrize("state", get_args(State))
def test_up_and_idle_at_zero_count_as_ready_and_nothing_else(state: State) -> None:
    assert ModelReadiness("a", state).ready is (state in {"up", "idle_at_zero"})


async def test_liveness_asks_no_engine() -> None:
    reply = await get("/health", ModelReadiness("a", "failed"))

    assert (reply.status_code, reply.json()) == (200, {"status": "ok"})


async def test_ready_while_every_model_is_up_or_wakes_on_a_request() -> None:
    reply = await get(
        "/ready",
        ModelReadiness("a", "up", replicas=2, target_replicas=3),
        ModelReadiness("b", "idle_at_zero"),
    )

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
    }


async def test_not_ready_while_one_model_is_not_and_the_body_says_why() -> None:
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
    }


async def test_a_failed_model_gives_its_reason() -> None:
    reply = await get("/ready", ModelReadiness("a", "failed", reason="weights: OSError: gone"))

    assert reply.status_code == 503
    assert reply.json()["models"]["a"]["reason"] == "weights: OSError: gone"


async def test_metrics_come_in_the_text_format_prometheus_reads() -> None:
    reply = await get("/metrics")

    assert reply.content == b"# HELP llm_queue_depth Waiting.\n"
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
