"""An OpenAI-shaped server without a model: it answers at known times and records when it really did.

    python -m benchmarks.load_clients.stub_server --port 8123 --log served.jsonl

Each token has a due time counted from the request's arrival, so a late one does not delay the next.
A request's JSON body may say how it is to be answered: `"stub": {"ttft_s": 0.5, "fail": "cut"}`,
see `stub_script.Script`.
"""

import argparse
import asyncio
import contextlib
import gc
import signal
import sys
from collections.abc import AsyncIterator, Callable
from io import FileIO
from typing import cast

import httptools
import msgspec
import uvloop

from benchmarks.load_clients.stub_reply import Reply, Site
from benchmarks.load_clients.stub_script import Request, Served
from loadtests.client.pacer import Pacer

_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 429: "Too Many Requests", 503: "Unavailable"}
_MODELS = b'{"object":"list","data":[{"id":"stub","object":"model","created":0,"owned_by":"stub"}]}'


@contextlib.asynccontextmanager
async def serve(
    *,
    ttft_s: float = 0.1,
    itl_s: float = 0.02,
    tokens: int = 250,
    host: str = "127.0.0.1",
    port: int = 0,
    record: Callable[[Served], object] = lambda _: None,
) -> AsyncIterator[int]:
    """Serve in the running loop until the block ends; yields the port.

    The delays (seconds) and the length are for requests that name none. `record` is called once for
    each completion request, when it has ended. OSError if the port is taken.
    """
    loop = asyncio.get_running_loop()
    with Pacer(loop) as pacer:
        site = Site(pacer, ttft_s, itl_s, tokens, record)
        server = await loop.create_server(lambda: _Connection(site), host, port, backlog=1024)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for connection in tuple(site.open):
                connection.close()


class _Connection(asyncio.Protocol):
    """One keep-alive connection: requests come one after the other."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._parser = httptools.HttpRequestParser(self)
        self._url, self._body = b"", b""
        self._reply: Reply | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # Both loops set TCP_NODELAY.
        self._site.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._site.open.discard(self)
        if self._reply is not None:
            self._reply.end("cancelled")

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        url, body, self._url, self._body = self._url, self._body, b"", b""
        if url.endswith(b"/completions"):
            self._complete(body, chat=url.endswith(b"/chat/completions"))
        elif url.endswith((b"/models", b"/health")):
            self.answer(200, _MODELS)
        else:
            self.answer(404, b'{"error":{"message":"no such path"}}')

    def _complete(self, body: bytes, *, chat: bool) -> None:
        try:
            request = msgspec.json.decode(body, type=Request)
        except msgspec.DecodeError as error:
            self.answer(400, msgspec.json.encode({"error": {"message": str(error), "code": 400}}))
            return
        fails = self._site.fails(body, request.stub)
        self._reply = Reply(self, self._site, request, chat=chat, fails=fails)
        self._reply.start()

    def answer(self, status: int, body: bytes, more: str = "") -> None:
        """A whole response."""
        head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: application/json\r\n{more}"
        self._transport.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def write(self, data: bytes) -> None:
        """Raw bytes of a response."""
        self._transport.write(data)

    def close(self) -> None:
        """After what is written is sent."""
        self._transport.close()


async def _main(given: argparse.Namespace, log: FileIO) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serve(
        ttft_s=given.ttft,
        itl_s=given.itl,
        tokens=given.tokens,
        host=given.host,
        port=given.port,
        record=lambda served: log.write(msgspec.json.encode(served) + b"\n"),
    ) as port:
        print(f"port {port}", flush=True)
        gc.collect()
        gc.freeze()
        await stop.wait()


def main(argv: list[str]) -> int:
    """Serve until SIGINT or SIGTERM; the first line of output is `port N`."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.load_clients.stub_server",
        description="An OpenAI-shaped server with known delays.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--log", default="/dev/null", help="JSON lines, one per completion request")
    parser.add_argument("--ttft", type=float, default=0.1, help="seconds")
    parser.add_argument("--itl", type=float, default=0.02, help="seconds")
    parser.add_argument("--tokens", type=int, default=250, help="of requests that name no max_tokens")
    given = parser.parse_args(argv)
    with FileIO(given.log, "w") as log, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_main(given, log))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
