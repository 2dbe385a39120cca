"""Engine replicas without engines: they speak the data plane and send heartbeats, all from one process.

All replicas share one port. The token of a connection names its replica.
"""

import asyncio
import resource
from multiprocessing.connection import Connection

import uvloop

from serve_app.wire.data_plane import BEAT_S, Beat, FromIngress, Hello
from serve_app.wire.frames import Frames

KV_CACHE_TOKENS = 400_000
"""The prefix cache of a 7B model on a GPU of 80 GB."""
STEP_TOKENS = 8192
_BEAT = Beat("", 0.0, KV_CACHE_TOKENS, step_tokens=STEP_TOKENS)
_SLOTS = 25
"""A period of heartbeats is sent in so many parts, because replicas start apart."""


def raise_open_files() -> None:
    """Allow this process as many connections as the machine does."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _run(control: Connection) -> None:
    slots: list[dict[str, Frames[FromIngress]]] = [{} for _ in range(_SLOTS)]
    silent: set[str] = set()

    def connect() -> Frames[FromIngress]:
        def receive(message: FromIngress) -> None:
            assert isinstance(message, Hello)
            frames.send(_BEAT)
            slots[hash(message.token) % _SLOTS][message.token] = frames

        frames: Frames[FromIngress] = Frames(FromIngress, receive, lambda _: None)
        return frames

    server = await asyncio.get_running_loop().create_server(connect, "127.0.0.1", 0, backlog=4096)
    control.send(server.sockets[0].getsockname()[1])
    while True:
        for slot in slots:
            for name, frames in slot.items():
                if name not in silent:
                    frames.send(_BEAT)
            await asyncio.sleep(BEAT_S / _SLOTS)
        while control.poll():
            if (names := control.recv()) is None:
                return
            silent |= names


def serve(control: Connection) -> None:
    """Run the fleet until `control` sends None. Before, it sends names of replicas that fall silent."""
    raise_open_files()
    uvloop.run(_run(control))
