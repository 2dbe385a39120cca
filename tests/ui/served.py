"""A server of the page, over a made-up fleet and a stub engine that answers a chat."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from serve_app.api.api_keys import ApiKeyFile
from tests.http_server import port_of, uvicorn_with
from tests.stub_engine import StubEngine, frames
from tests.ui.fleet import FakeFleet, PageServer

ANSWER = ("A tide ", "is <b>the</b> rise", " and fall of the sea.")


def part(content: str, end: str | None = None, **delta: str) -> bytes:
    choice = {"delta": {"content": content, **delta}, "finish_reason": end}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 18, "completion_tokens": 12},
    "latency": {"ttft_ms": 41.2, "inter_token_ms": 11.8, "tokens_per_second": 62.5, "cached_tokens": 16},
}
THOUGHT = part("", reasoning="Think of the moon.")
CHAT = (
    THOUGHT,
    *map(part, ANSWER),
    part("", "length"),
    b"data: " + json.dumps(USAGE).encode() + b"\n\n",
    b"data: [DONE]\n\n",
)


@asynccontextmanager
async def served(
    fleet: FakeFleet | None = None, engine: StubEngine | None = None, keys: ApiKeyFile | None = None
) -> AsyncIterator[tuple[PageServer, str]]:
    server = PageServer(fleet or FakeFleet(), engine or StubEngine(frames(*CHAT)), keys)
    async with uvicorn_with(server.app) as running:
        sending = asyncio.create_task(server.events.run())
        try:
            yield server, f"http://127.0.0.1:{port_of(running)}"
        finally:
            sending.cancel()
            server.draining = True
            await server.events.tick()
