"""Candidate: gRPC's asyncio API, one bidirectional stream of bytes, one message per step."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc

from benchmarks.transport.pieces import Consumer
from benchmarks.transport.steps import encode, relays


async def send(streams: int, steps: AsyncIterator[list[bytes]], listening: Callable[[int], None]) -> None:
    """The engine's end; `listening` gets the port."""
    attached: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    ended = asyncio.Event()

    async def serve(requests: AsyncIterator[bytes], call: Any) -> None:
        attached.set_result(call)
        await ended.wait()

    server = grpc.aio.server()
    methods = {"Steps": grpc.stream_stream_rpc_method_handler(serve)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Transport", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    listening(port)
    call = await attached
    async for pieces in steps:
        await call.write(encode(pieces))
    ended.set()
    await server.stop(None)


async def receive(port: int, consumers: Sequence[Consumer]) -> None:
    """The ingress' end, until the empty step has come."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel, relays(consumers) as deliver:
        call = channel.stream_stream("/Transport/Steps")()
        more = True
        while more:
            more = deliver(await call.read())
            await asyncio.sleep(0)  # the next message may be there, and would be read before the relays run
