"""vLLM's OpenAI serving layer, mounted around an engine of this process."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass

from starlette.datastructures import State
from vllm.v1.engine.async_llm import AsyncLLM

from serve_app.engine.continued_core import core_continues
from serve_app.engine.continued_stream import continue_streams
from serve_app.engine.media import guard_media
from serve_app.engine.plain_stream import prefer_plain_streams
from serve_app.engine.sequence_intake import guard_intake
from serve_app.patches.vllm_compat import PLAIN_STREAMS, init_app_state


@dataclass(frozen=True, slots=True)
class Serving:
    """The handlers that vLLM has for one engine, by the names that its own API server uses."""

    engine: AsyncLLM
    state: State

    @classmethod
    async def mount(cls, engine: AsyncLLM, namespace: Namespace) -> Serving:
        """Build the handlers of every task that the engine's model supports."""
        guard_media()
        state = State()
        await init_app_state(engine, state, namespace, await engine.get_supported_tasks())
        chat = getattr(state, "openai_serving_chat", None)
        if chat is not None and PLAIN_STREAMS:
            prefer_plain_streams(chat)
        if core_continues(engine.vllm_config):
            continue_streams(engine)
        guard_intake(engine)
        return cls(engine, state)
