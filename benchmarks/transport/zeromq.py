"""Candidate: ZeroMQ, ROUTER to DEALER, one message per step."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import zmq
import zmq.asyncio

from benchmarks.transport.pieces import Consumer
from benchmarks.transport.steps import encode, relays

_TOKENS_IN_QUEUE = 4096  # about 1 MiB in each process; ZeroMQ itself counts messages


def _socket(kind: int, streams: int) -> zmq.asyncio.Socket:
    socket = zmq.asyncio.Context.instance().socket(kind)
    socket.set_hwm(max(4, _TOKENS_IN_QUEUE // streams))
    return socket


async def send(streams: int, steps: AsyncIterator[list[bytes]], listening: Callable[[int], None]) -> None:
    """The engine's end; `listening` gets the port."""
    socket = _socket(zmq.ROUTER, streams)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # with a full queue wait, and do not drop
    listening(socket.bind_to_random_port("tcp://127.0.0.1"))
    peer, _ = await socket.recv_multipart()
    async for pieces in steps:
        await socket.send_multipart([peer, encode(pieces)], copy=False)
    socket.close(linger=0)


async def receive(port: int, consumers: Sequence[Consumer]) -> None:
    """The ingress' end, until the empty step has come."""
    socket = _socket(zmq.DEALER, len(consumers))
    socket.connect(f"tcp://127.0.0.1:{port}")
    async with relays(consumers) as deliver:
        await socket.send(b"hello")
        more = True
        while more:
            more = deliver((await socket.recv(copy=False)).buffer)
            await asyncio.sleep(0)  # the next message may be there, and would be read before the relays run
    socket.close(linger=0)
