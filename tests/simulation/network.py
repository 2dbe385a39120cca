"""Connections in memory, with delays, torn writes, cuts after any byte, half-closes and slow readers."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import Any

_DELAYS_S = (0.00002, 0.001, 0.03)
_HIGH_WATER = (64, 2 << 10, 64 << 10)
"""Unread bytes from which a writer is paused. A small number stands for small buffers of the kernel."""


class Network:
    """All connections of one world, and a trace of what has arrived."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seed: str) -> None:
        self.loop = loop
        self.seed = seed
        self.trace: list[str] = []
        self.open: dict[Transport, None] = {}
        """Both ends of each open connection."""
        self._cuts: dict[str, int] = {}
        """By listener: the arrivals until its connections are cut."""
        self._held_until: dict[str, float] = {}
        """By listener, or by listener and asker: until when nothing passes between them."""
        self._listeners: dict[tuple[str, int], Callable[[], Any]] = {}
        self._connections, self._ports = count(1), count(1)

    def listen(self, factory: Callable[[], Any], host: str) -> Any:
        """Return a server, as `create_server` does."""
        address = (host, next(self._ports))
        self._listeners[address] = factory
        socket = SimpleNamespace(getsockname=lambda: address)
        return SimpleNamespace(sockets=[socket], close=lambda: self._listeners.pop(address, None))

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[Transport, Any]:
        """Connect to a listener. Raises ConnectionRefusedError if there is none.

        Args:
            factory: Makes the asker's protocol.
            host: The listener, perhaps with the asker: `engine-1@ingress-2`.
            port: Its port.
        """
        number = next(self._connections)
        name, draw = f"{host}#{number}", Random(f"connection {self.seed} {number}")
        await asyncio.sleep(draw.expovariate(1 / draw.choice(_DELAYS_S)))
        while (held_s := self.held_s(name)) > 0:
            await asyncio.sleep(held_s)
        if (accept := self._listeners.get((host.partition("@")[0], port))) is None:
            raise ConnectionRefusedError(f"nobody listens at {host}:{port}")
        here, there = Transport(self, f"{name}>", draw), Transport(self, f"{name}<", draw)
        here.peer, there.peer = there, here
        asker = factory()
        for end, protocol in ((there, accept()), (here, asker)):
            self.open[end] = None
            end.set_protocol(protocol)
            protocol.connection_made(end)
        return here, asker

    def cut(self, host: str, arrivals: int = 0) -> None:
        """Cut all connections to `host`, now or after so many arrivals at either end."""
        if arrivals:
            self._cuts[host] = arrivals
            return
        for end in [end for end in self.open if end.name.endswith("<") and _is_of(end.name, host)]:
            end.cut()

    def note_arrival(self, name: str) -> None:
        """Cut connections if enough has arrived."""
        for host in [host for host in self._cuts if _is_of(name, host)]:
            self._cuts[host] -= 1
            if not self._cuts[host]:
                del self._cuts[host]
                self.cut(host)

    def hold(self, host: str, seconds: float) -> None:
        """Let nothing pass to or from `host`, perhaps only of one asker. No end notices it by itself."""
        self._held_until[host] = self.loop.time() + seconds

    def held_s(self, name: str) -> float:
        """Return for how long nothing passes on the connection `name`; 0 or less if it does now."""
        until = [moment for host, moment in self._held_until.items() if _is_of(name, host)]
        return max(until, default=0.0) - self.loop.time()

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self.loop.time():.6f} {text}")


def _is_of(name: str, host: str) -> bool:
    return name.startswith((f"{host}#", f"{host}@"))


class Transport(asyncio.Transport):
    """One end of a connection. What it writes reaches its peer late, and in parts."""

    peer: Transport

    def __init__(self, network: Network, name: str, draw: Random) -> None:
        super().__init__({"peername": ("10.0.0.1", 1), "sockname": ("10.0.0.2", 2)})
        self.name = name
        self._network = network
        self._draw = draw
        self._delay_s = draw.choice(_DELAYS_S)
        self._torn = draw.choice((0.0, 0.2, 1.0))
        """How often a write arrives in parts."""
        self._high = draw.choice(_HIGH_WATER)
        self._out = bytearray()
        self._reading, self._pumping, self._paused = True, False, False
        self._ends = self._closing = self._ended = self._lost = self._cut = False
        self._protocol: Any = None

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._closing:
            self._reading = True
            self.peer._start_pump()

    def write(self, data: Any) -> None:
        if self._ends or self._lost or self._cut:
            return
        self._out += data
        if len(self._out) > self._high and not self._paused:
            self._paused = True
            self._protocol.pause_writing()
        self._start_pump()

    def write_eof(self) -> None:
        self._ends = True
        self._start_pump()

    def close(self) -> None:
        if not self._closing:
            self._closing, self._reading = True, False
            if not self._out:
                self._network.loop.call_soon(self._finish, None)
            self.write_eof()

    def abort(self) -> None:
        self.reset(None)
        delay_s = max(self._network.held_s(self.name), self._delay())
        self._network.loop.call_later(delay_s, self.peer.reset)

    def reset(self, error: Exception | None = ConnectionResetError("cut")) -> None:  # noqa: B008
        """End this end at once, and drop what it has written."""
        self._out.clear()
        self._closing = self._ends = self._ended = True
        self._reading = False
        self._network.loop.call_soon(self._finish, error)

    def cut(self) -> None:
        """Cut the connection. The two ends notice it at different times."""
        for end in (self, self.peer):
            end._out.clear()
            end._cut = True  # nothing passes after a hole
            self._network.loop.call_later(self._delay(), end.reset)

    def _delay(self) -> float:
        return self._draw.expovariate(1 / self._delay_s)

    def _start_pump(self) -> None:
        if not self._pumping and not self._cut and (self._out or (self._ends and not self._ended)):
            self._pumping = True
            delay_s = max(self._network.held_s(self.name), self._delay())
            self._network.loop.call_later(delay_s, self._pump)

    def _pump(self) -> None:
        self._pumping = False
        peer = self.peer
        if self._cut:
            return
        if self._network.held_s(self.name) > 0:
            self._start_pump()
            return
        if peer._closing:
            if self._out and peer._lost and not self._lost:
                self.reset()
                return
            self._out.clear()
        elif not peer._reading:
            return  # the peer starts it again
        if self._out:
            size = len(self._out)
            if self._draw.random() < self._torn:
                size = self._draw.randint(1, size)
            data = bytes(self._out[:size])
            del self._out[:size]
            self._network.note(f"{self.name} {size} {zlib.crc32(data):x}")
            peer._protocol.data_received(data)
            self._network.note_arrival(self.name)
        if self._paused and len(self._out) <= self._high // 4:
            self._paused = False
            self._protocol.resume_writing()
        if not self._out and self._ends and not self._ended:
            self._ended = True
            peer._receive_end()
            if self._closing:
                self._finish(None)
        self._start_pump()

    def _receive_end(self) -> None:
        if not self._closing:
            self._network.note(f"{self.name} end")
            if not self._protocol.eof_received():
                self.close()

    def _finish(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = self._closing = True
            self._network.open.pop(self, None)
            self._network.note(f"{self.name} lost {error}")
            self._protocol.connection_lost(error)
