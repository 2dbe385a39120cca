"""The whole application over two stub engines, and a client of it."""

from collections.abc import Mapping, Sequence
from typing import Any

from httpx import ASGITransport, AsyncClient, Response

from serve_app.api.api_keys import ApiKeyFile
from serve_app.api.autoscaling import AutoscalingView
from serve_app.api.batch_access import BatchAccess
from serve_app.api.budgets import Budgets
from serve_app.api.endpoints import ApiModel
from serve_app.api.engine_client import EngineReply, Traffic
from serve_app.api.health import ModelReadiness, Readiness
from serve_app.api.http_api import create_app
from serve_app.api.quotas import Quotas
from serve_app.api.request_head import RequestTraces
from serve_app.api.usage import UsageView
from serve_app.settings.knobs import Knobs
from serve_app.settings.tree import HttpSettings
from tests.stub_engine import StubEngine

MAX_BODY_BYTES = 4096


class StubObserver:
    def __init__(self) -> None:
        self.states: dict[str, ModelReadiness] = {}
        self.exposition = b'llm_queue_depth{model="tide"} 3\n'

    async def readiness(self) -> Readiness:
        names = ("tide", "org/embed")
        return Readiness([self.states.get(name, ModelReadiness(name, "up")) for name in names])

    async def metrics(self) -> bytes:
        return self.exposition


class Server:
    """The application, its two engines, and a client."""

    def __init__(
        self,
        behind_ray: bool = False,
        chat: StubEngine | None = None,
        traffic: Mapping[str, Traffic] | None = None,
        autoscaling: AutoscalingView | None = None,
        api_keys: ApiKeyFile | None = None,
        quotas: Quotas | None = None,
        budgets: Budgets | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
        max_body_memory_bytes: int = 1 << 20,
        listens_on: str | None = None,
        usage: UsageView | None = None,
        batches: BatchAccess | None = None,
        traces: RequestTraces | None = None,
        aliases: Mapping[str, Sequence[str]] | None = None,
        adapters: Mapping[str, str] | None = None,
        **http: Any,
    ) -> None:
        told = traffic or {}
        self.aliases = dict(aliases or {})
        """The present aliases by model."""
        self.chat = chat or StubEngine(EngineReply(200, b'{"from":"chat"}'))
        self.embed = StubEngine(EngineReply(200, b'{"from":"embed"}'))
        self.observer = StubObserver()
        models = [
            ApiModel(
                name,
                created,
                engine,
                length,
                told.get(name, Traffic()),
                lambda name=name: Knobs.model_construct(  # type: ignore[misc]
                    aliases=tuple(self.aliases.get(name, ())),
                    adapters=(adapters or {}) if name == "tide" else {},
                ),
            )
            for name, created, engine, length in (
                ("tide", 1_700_000_000, self.chat, 2048),
                ("org/embed", 1_700_000_001, self.embed, None),
            )
        ]
        self.app = app = create_app(
            models,
            self.observer,
            HttpSettings.model_construct(
                max_body_bytes=max_body_bytes,
                body_timeout_s=60.0,
                max_body_memory_bytes=max_body_memory_bytes,
                **http,
            ),
            api_keys=api_keys,
            quotas=quotas,
            budgets=budgets,
            autoscaling=autoscaling,
            behind_ray=behind_ray,
            listens_on=listens_on,
            usage=usage,
            batches=batches,
            traces=traces,
        )
        self.http = AsyncClient(
            transport=ASGITransport(app), base_url="http://tide", headers={"Content-Type": "application/json"}
        )


def error_of(reply: Response) -> dict[str, Any]:
    """The error of a reply, having checked its shape and its id."""
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"]
    document = reply.json()
    assert set(document) == {"error"}
    error: dict[str, Any] = document["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error
