"""vLLM's OpenAI layer, imported and mounted once for all tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
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
