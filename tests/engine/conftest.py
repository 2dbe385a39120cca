"""vLLM's OpenAI layer, imported and mounted once for all tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from serve_app.engine.local_client import LocalEngine
    from serve_app.engine.operations import Serving


@pytest.fixture(scope="session")
async def serving() -> AsyncIterator[Serving]:
    """The handlers of the embedded model, around a stub of the engine core that generates one token."""
    from vllm.v1.engine.async_llm import AsyncLLM

    from serve_app.engine.operations import Serving
    from tests.engine.stub_engine_core import StubEngineCore, configured, put_in_place

    _, namespace, config = configured()
    with pytest.MonkeyPatch.context() as monkeypatch:
        put_in_place(StubEngineCore(), monkeypatch)
        llm = AsyncLLM.from_vllm_config(config, disable_log_stats=True)
    yield await Serving.mount(llm, namespace)
    llm.shutdown()


@pytest.fixture(scope="session")
async def engine() -> AsyncIterator[LocalEngine]:
    """The embedded model in a real engine core, with a prefix cache and a compile sandbox."""
    import asyncio

    from vllm.v1.engine.async_llm import AsyncLLM

    from serve_app.engine.grammar.guard import guard_grammars
    from serve_app.engine.local_client import LocalEngine
    from serve_app.engine.operations import Serving
    from tests.engine.stub_engine_core import configured, vllm_restored

    settings, namespace, config = configured(max_model_len=512)
    llm = AsyncLLM.from_vllm_config(config, disable_log_stats=False)
    local = LocalEngine(await Serving.mount(llm, namespace), settings, lambda _: None)
    with vllm_restored():
        guard = guard_grammars(llm, settings.structured_output)
        yield local
        guard.stop()
    llm.shutdown()
    await asyncio.sleep(0)  # the sockets are closed by the loop
    llm.engine_core.resources.ctx.destroy(linger=0)
