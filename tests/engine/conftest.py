"""vLLM's OpenAI layer, imported and mounted once for all tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from serve_app.engine.chat_operations import Serving
    from serve_app.engine.local_client import LocalEngine
    from tests.engine.lora import Lora


@pytest.fixture(scope="session")
async def serving() -> AsyncIterator[Serving]:
    """The handlers of the embedded model, around a fake of the engine core that generates one token."""
    from tests.engine.stub_engine_core import StubEngineCore, front_end

    async with front_end(StubEngineCore()) as (serving, _):
        yield serving


@pytest.fixture(scope="session")
async def engine() -> AsyncIterator[LocalEngine]:
    """The embedded model in a real engine core, for all tests that need one: it takes long to start."""
    from tests.engine.stub_engine_core import real_engine

    async with real_engine(tool_call_parser="hermes") as engine:
        yield engine


@pytest.fixture(scope="session")
async def lora(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lora]:
    """The embedded model with LoRA in a real engine core."""
    from tests.engine.lora import lora_engine

    async with lora_engine(tmp_path_factory.mktemp("adapters")) as lora:
        yield lora
