"""An HTTP client that may read slowly, and that may leave in several ways."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

import httptools

from tests.simulation.core import Script
from tests.simulation.network import Transport

Api = Literal["chat/completions", "completions", "messages", "responses", "generate"]
_APIS: tuple[Api, ...] = ("chat/completions",) * 3 + ("completions", "messages", "responses", "generate")
_WORDS = ("the sea", "is calm", "and grey", "waves", "roll over", "old stones", "while", "gulls cry", "海 🌊")
STOP = "STOP"
PATIENCE_S = 2000.0
"""No request takes so long."""
CALLS = [("get_weather", {"city": "Berlin am See", "days": 3}), ("get_time", {"zone": {"name": 'a"b\\n海'}})]
"""The tools that an answer calls, with their arguments."""
CALLS_BEGIN = {"hermes": "<tool_call>", "olmo3": "<function_calls>"}
"""Where calls begin in an answer, by parser. The events of `olmo3` depend on the division into outputs."""
LANES = ("interactive", "standard", "background")
ADAPTERS = ("sailor", "gull", "stone")


@dataclass
class Asked:
    """What a client asks for, and how it behaves.

    The model calls so many tools of CALLS. Without a `lane`, the lane is that of the `key`. `ingress` chooses
    the ingress replica: 0 is the first, and 1 is behind the last. The client `leaves` before the end by
    `abort`, `close` or `half-close`, or stays. A slow reader pauses `pauses_s` on average.
    """

    name: str
    at_s: float
    api: Api
    body: dict[str, Any]
    script: Script
    calls: int = 0
    lane: str = ""
    key: str = ""
    ingress: float = 0.0
    leaves: str = ""
    leaves_after_s: float = 0.0
    pauses_s: float = 0.0

    @property
    def most(self) -> int:
        """The most tokens of each sequence."""
        return int(self.body.get("max_tokens") or self.body["max_output_tokens"])

    @property
    def adapter(self) -> str:
        """The adapter that it asks for; "" for none."""
        return self.body["model"] if self.body["model"] in ADAPTERS else ""


def draw_asked(seed: str, number: int, most_tokens: int, parser: str) -> Asked:
    """Draw what a client of a world asks for. `most_tokens` bounds the answer, whose tools `parser` reads."""
    draw = Random(f"asked {seed} {number}")
    api, text = draw.choice(_APIS), " ".join(draw.choices(_WORDS, k=draw.randint(1, 20)))
    most = min(most_tokens, draw.choice((1, 2, 5, 20, 20, 60, 60, 150, 600)))
    script, calls = Script(), 0
    kind = draw.choice(("", "", "ends", "stop", "tools") if parser == "hermes" else ("", "tools"))
    body: dict[str, Any] = {"model": draw.choice(("tide", "tide", "tide", *ADAPTERS))}
    if api in ("completions", "generate"):
        body["prompt"] = text
    else:
        body["input" if api == "responses" else "messages"] = [{"role": "user", "content": text}]
    if api in ("chat/completions", "completions"):
        body["n"] = draw.choice((1, 1, 1, 2, 3))
    if kind == "ends":
        script = Script(ends_at=draw.randint(1, most + 1))
    elif kind == "stop" and api not in ("responses", "generate"):
        script = Script(" ".join(draw.choices(_WORDS[:-1], k=draw.randint(0, 8))) + f" {STOP} and more")
        body["stop_sequences" if api == "messages" else "stop"] = [STOP]
    elif kind == "tools" and api in ("chat/completions", "messages", "responses"):
        calls, most = draw.choice((1, 2)), 300
        said = draw.choice(("", "I look.\n", " ".join(draw.choices(_WORDS, k=30)) + "\n"))
        script = Script(_written(parser, calls, said), 0)
        body["tools"] = [_tool(api, name) for name, _ in CALLS]
    script.ends_engines = draw.random() < 0.05
    body["max_output_tokens" if api == "responses" else "max_tokens"] = most
    if draw.random() < 0.75:
        body["stream"] = True
        if api in ("chat/completions", "completions") and draw.random() < 0.8:
            body["stream_options"] = {"include_usage": True}
    asked = Asked(f"sim{number}", draw.choice((0.0, draw.uniform(0.0, 6.0))), api, body, script, calls)
    asked.key, asked.lane = draw.choice(LANES), draw.choice(("",) * 5 + LANES)
    asked.ingress = draw.random()
    if draw.random() < 0.25:
        asked.leaves = draw.choice(("abort", "close", "half-close"))
        asked.leaves_after_s = draw.choice((0.0, 0.01, 0.1, 1.0, 5.0)) * draw.random()
    if draw.random() < 0.3:
        asked.pauses_s = draw.choice((0.01, 0.5, 20.0))
    return asked


def _written(parser: str, count: int, said: str) -> str:
    """Return how a model calls tools, in the format of a parser."""
    if parser == "hermes":
        told = [f"<tool_call>\n{json.dumps({'name': n, 'arguments': a})}\n</tool_call>" for n, a in CALLS]
        return said + "\n".join(told[:count])
    given = [(name, [f"{key}={json.dumps(each)}" for key, each in values.items()]) for name, values in CALLS]
    lines = [f"{name}({', '.join(values)})" for name, values in given[:count]]
    return CALLS_BEGIN[parser] + "\n".join(lines) + "</function_calls>"


def _tool(api: Api, name: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {}}
    if api == "messages":
        return {"name": name, "input_schema": schema}
    function = {"name": name, "parameters": schema}
    return {"type": "function", **(function if api == "responses" else {"function": function})}


@dataclass(eq=False)
class Client(asyncio.Protocol):
    """Sends one request, and keeps what it gets."""

    asked: Asked
    seed: str
    status: int = 0
    body: bytes = b""
    complete: bool = False
    """Whether the answer's last byte came."""
    left: bool = False
    ingress: int = 0
    """The number of the ingress replica that it asks."""
    began: float = 0.0
    first_byte_s: float = 0.0
    ended: float = 0.0

    def __post_init__(self) -> None:
        self._draw = Random(f"client {self.seed} {self.asked.name}")
        self._done = asyncio.Event()
        self._parser = httptools.HttpResponseParser(self)
        self._transport: Transport

    async def run(self, addresses: list[tuple[str, int]]) -> None:
        """Ask, and read until the end."""
        asked = self.asked
        loop = asyncio.get_running_loop()
        await asyncio.sleep(asked.at_s)
        body = json.dumps(asked.body).encode()
        head = (
            f"POST /{'' if asked.api == 'generate' else 'v1/'}{asked.api} HTTP/1.1\r\nHost: tide\r\n"
            f"Content-Type: application/json\r\nAuthorization: Bearer {asked.key}\r\n"
            f"X-Request-ID: {asked.name}\r\nContent-Length: {len(body)}\r\n"
            + (f"X-Tideserve-Lane: {asked.lane}\r\n" if asked.lane else "")
        )
        self.ingress = int(asked.ingress * len(addresses))
        transport, _ = await loop.create_connection(lambda: self, *addresses[self.ingress])
        self._transport = transport  # type: ignore[assignment]
        self.began = loop.time()
        transport.write(f"{head}\r\n".encode())
        transport.write(body)
        leaving = loop.call_later(asked.leaves_after_s, self._leave) if asked.leaves else None
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await self._done.wait()
        self.ended = loop.time()
        if leaving is not None:
            leaving.cancel()
        transport.close()

    def _leave(self) -> None:
        if not self._done.is_set():
            self.left = True
            leave = {"abort": self._transport.abort, "close": self._transport.close}
            leave.get(self.asked.leaves, self._transport.write_eof)()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)
        if self.asked.pauses_s and not self._done.is_set():
            self._transport.pause_reading()
            # Else one with long pauses would never end.
            pause_s = self._draw.expovariate(1 / self.asked.pauses_s) / (1 + len(self.body) // 1000)
            asyncio.get_running_loop().call_later(pause_s, self._transport.resume_reading)

    def connection_lost(self, error: Exception | None) -> None:
        self._done.set()

    def on_status(self, _: bytes) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.first_byte_s = self.first_byte_s or asyncio.get_running_loop().time() - self.began
        self.body += body

    def on_message_complete(self) -> None:
        self.complete = True
        self._done.set()
