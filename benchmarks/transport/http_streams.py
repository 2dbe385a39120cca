"""The baseline of today: one HTTP response per stream, one chunk per token.

The settings are those of `serve_app.engine.data_plane` and `serve_app.ingress.relay_client`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import aiohttp
from aiohttp import web

from benchmarks.transport.pieces import Consumer


async def send(streams: int, steps: AsyncIterator[list[bytes]], listening: Callable[[int], None]) -> None:
    """The engine's end; `listening` gets the port."""
    responses: dict[int, web.StreamResponse] = {}
    attached, ended = asyncio.Event(), asyncio.Event()

    async def serve(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        responses[int(request.match_info["stream"])] = response
        if len(responses) == streams:
            attached.set()
        await ended.wait()
        return response

    app = web.Application()
    app.router.add_post("/{stream}", serve)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    listening(runner.addresses[0][1])
    await attached.wait()
    async for pieces in steps:
        for stream, piece in enumerate(pieces):
            await responses[stream].write(piece)
        if not pieces:
            ended.set()
    await runner.cleanup()


async def receive(port: int, consumers: Sequence[Consumer]) -> None:
    """The ingress' end, until all responses have ended."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:

        async def relay(stream: int, consumer: Consumer) -> None:
            async with session.post(f"http://127.0.0.1:{port}/{stream}", data=b"{}") as response:
                async for data in response.content.iter_any():
                    consumer.take(data)

        async with asyncio.TaskGroup() as tasks:
            for stream, consumer in enumerate(consumers):
                tasks.create_task(relay(stream, consumer))
