"""A server of the API in a thread of its own: an aiohttp application whose answers a test scripts."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any

from aiohttp import web

DONE = b"data: [DONE]\n\n"
LIMIT_S = 20.0
_MODELS = {"object": "list", "data": [{"id": "tide"}, {"id": "embed"}]}


def event(document: Any) -> bytes:
    return b"data: " + json.dumps(document, ensure_ascii=False).encode() + b"\n\n"


def chat(text: str | None, **more: Any) -> bytes:
    """One event of a chat, as the API sends it."""
    return event({"choices": [{"index": 0, "delta": {"content": text, **more}, "finish_reason": None}]})


def last(tokens: int, **latency: float) -> bytes:
    usage = {"prompt_tokens": 4, "completion_tokens": tokens, "total_tokens": 4 + tokens}
    return event({"choices": [], "usage": usage, **({"latency": latency} if latency else {})})


def held(phase: str, eta: str, waited_s: int) -> bytes:
    return f": waiting for a replica of tide: phase={phase} eta_s={eta} waited_s={waited_s}\n\n".encode()


def failed(message: str, code: str) -> bytes:
    error = {"message": message, "type": "server_error", "param": None, "code": code}
    return b"event: error\n" + event({"error": error})


@dataclass
class Refusal:
    """An answer before a stream."""

    status: int
    body: Any
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Tide:
    """What it answers, part by part, or with a refusal; and what it was asked."""

    parts: tuple[bytes, ...] = ()
    refusals: dict[str, Refusal] = field(default_factory=dict)
    """By path."""
    models: Any = field(default_factory=lambda: _MODELS)
    cut: bool = False
    """The connection is reset after the parts."""
    endless: bool = False
    """Nothing follows the parts, and the connection stays."""
    content_type: str = "text/event-stream; charset=utf-8"
    asked: list[tuple[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    streaming: Event = field(default_factory=Event)
    """The parts have been sent."""
    left: Event = field(default_factory=Event)
    """A client has left an endless stream."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.keys.append(request.headers.get("Authorization"))
        refusal = self.refusals.get(request.path)
        if refusal is not None:
            return web.json_response(refusal.body, status=refusal.status, headers=refusal.headers)
        if request.path == "/v1/models":
            return web.json_response(self.models)
        self.asked.append((request.path, await request.json()))
        reply = web.StreamResponse(headers={"Content-Type": self.content_type})
        await reply.prepare(request)
        for part in self.parts:
            await reply.write(part)
        self.streaming.set()
        if self.endless:
            try:
                await asyncio.sleep(LIMIT_S)
            finally:
                self.left.set()
        if self.cut:
            assert request.transport is not None
            request.transport.abort()
        return reply


@contextmanager
def serving(tide: Tide) -> Iterator[str]:
    """Its URL."""
    started, stop = Event(), Event()
    url: list[str] = []

    async def serve() -> None:
        api = web.Application()
        api.router.add_route("*", "/{path:.*}", tide.answer)
        runner = web.AppRunner(api, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        started.set()
        await asyncio.to_thread(stop.wait)
        await runner.cleanup()

    thread = Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(LIMIT_S)
    try:
        yield url[0]
    finally:
        stop.set()
        thread.join()
