"""The server's side of one HTTP exchange, for responses run as raw ASGI applications."""

import asyncio

from starlette.types import Message

SCOPE = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}


class Connection:
    """The server's side of one exchange: notes what is sent, and leaves when told to."""

    def __init__(self, reads: bool = True) -> None:
        self.sent: list[Message] = []
        self.body_arrived = asyncio.Event()
        self._leaving = asyncio.Event()
        self._reads = asyncio.Event()
        if reads:
            self._reads.set()
        self._incoming: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]

    def read(self) -> None:
        """Read what has been sent, and what will be."""
        self._reads.set()

    def leave(self) -> None:
        self._leaving.set()

    async def receive(self) -> Message:
        if self._incoming:
            return self._incoming.pop()
        await self._leaving.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        if message["type"] == "http.response.body":
            self.body_arrived.set()
            await self._reads.wait()

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.sent[1:])

    @property
    def complete(self) -> bool:
        return bool(self.sent) and self.sent[-1].get("more_body") is False
