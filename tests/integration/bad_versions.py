"""Versions that are worse than their models: slow, erring, or without an end."""

import json
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray.serve import Application

from serve_app.api.engine_client import EngineReply
from serve_app.api.errors import ApiError
from serve_app.app import build_application
from serve_app.engine import engine_deployment
from serve_app.engine.engine_call import EngineCall
from serve_app.engine.engine_deployment import Engine
from serve_app.settings.load import knob_defaults, load_settings
from serve_app.weights import embedded_model_path

BAD = "BAD"
SLOW_WORKER = "tests.integration.slow_worker.SlowWorker"
ERRING_SHARE = 0.05


class ErringClient:
    """Fails 5 % of the calls: half before their first byte, and half within their streams."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    @asynccontextmanager
    async def call(self, call: EngineCall) -> AsyncIterator[EngineReply]:
        drawn = random.random()
        if drawn < ERRING_SHARE / 2:
            raise ApiError(500, "The version fails.", code="internal_error")
        async with self.client.call(call) as reply:
            cut = drawn < ERRING_SHARE and reply.stream is not None
            yield replace(reply, stream=_cut(reply.stream)) if cut and reply.stream is not None else reply


async def _cut(stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    parts = 0
    async for part in stream:
        yield part
        parts += 1
        if parts > 2:
            raise RuntimeError("the version fails within the stream")


class BadEngine(Engine):
    """An engine whose `env` may have `BAD: errs`."""

    async def __init__(self, model: dict[str, Any], *arguments: Any, **more: Any) -> None:  # type: ignore[misc]
        if model["env"].get(BAD) == "errs":
            launch = engine_deployment.launch

            async def erring(*given: Any, **others: Any) -> Any:
                engine = await launch(*given, **others)
                return replace(engine, client=ErringClient(engine.client))

            engine_deployment.launch = erring
        await super().__init__(model, *arguments, **more)  # type: ignore[misc]


def build(args: dict[str, Any]) -> Application:
    """Return the application of `serve_app.app.build` with `BadEngine`."""
    return build_application(load_settings(args), knob_defaults(args), BadEngine)


def model_without_end(folder: Path) -> str:
    """Write the embedded model with another end token, which it never generates. Return its folder."""
    shutil.copytree(embedded_model_path(), folder)
    for name in ("config.json", "generation_config.json"):
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": [2046]}))
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token": "<tool_response>"}))
    return str(folder)


def model_copy(folder: Path) -> str:
    """Write a copy of the embedded model, and return its folder."""
    shutil.copytree(embedded_model_path(), folder)
    return str(folder)
