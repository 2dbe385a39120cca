"""A real engine with LoRA adapters."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serve_app.api.engine_client import Operation
from serve_app.engine.adapters import Adapters
from serve_app.engine.local_client import LocalEngine
from serve_app.settings.caller import Caller
from serve_app.settings.model_names import Adapter
from serve_app.weights.adapter_store import AdapterStore
from tests.engine.calls import engine_call
from tests.engine.stub_engine_core import configured, real_serving
from tests.lora_files import write_adapter

BOUNDS = {"max_rank": 8, "max_loaded": 1, "max_cached": 2}


@dataclass
class Lora:
    """A real engine with LoRA, and the loads so far."""

    engine: LocalEngine
    adapters: Adapters
    folder: Path
    loads: list[str] = field(default_factory=list)
    now: float = 0.0

    def adapter(self, name: str, **files: Any) -> Adapter:
        source = self.folder / name
        if not source.exists():
            write_adapter(source, **{"seed": len(name) + sum(map(ord, name)), **files})
        return Adapter(name, str(source))

    async def text(
        self, adapter: Adapter | None = None, operation: Operation = "chat_completions", **body: Any
    ) -> dict[str, Any]:
        prompt: dict[str, Any] = {"messages": [{"role": "user", "content": "Tell me about the sea."}]}
        if operation not in ("chat_completions", "messages"):
            prompt = {"prompt": "The sea is"}
        lane, begun = body.pop("lane", "standard"), body.pop("begun", None)
        alias = body.pop("alias", "")
        name = "tide" if adapter is None else adapter.name
        document = {"model": name, "max_tokens": 8, "temperature": 0.0, **prompt, **body}
        request = engine_call(
            operation,
            json.dumps(document).encode(),
            "r-1",
            adapter=adapter,
            caller=Caller("anyone", lane, 1.0),
            continuation=begun,
            alias=alias,
        )
        async with self.engine.call(request) as reply:
            if reply.stream is not None:
                return {"frames": [frame async for frame in reply.stream]}
            answer: dict[str, Any] = json.loads(reply.body)
            return answer


@asynccontextmanager
async def lora_engine(folder: Path) -> AsyncIterator[Lora]:
    """Start the engine. Its adapters are written to the folder."""
    settings, namespace, config = configured(lora=BOUNDS, max_model_len=512)
    assert settings.lora is not None
    async with real_serving(namespace, config) as serving:
        loads: list[str] = []
        adapters = Adapters(
            serving.engine,
            serving.adapters,
            settings.lora,
            AdapterStore(folder / "copies", 4 << 20),
            lambda name, _: loads.append(name),
        )
        client = LocalEngine(serving, settings, lambda _: None, adapters=adapters)
        known = Lora(client, adapters, folder, loads)
        adapters.clock = lambda: known.now
        yield known
