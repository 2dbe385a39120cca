"""An OpenAI-shaped server without a model: it answers at known times and records the times it kept.

    python -m tests.loadtests.stub_server --log served.jsonl

Each token has a due time counted from the request's arrival, so a late token does not delay the next.
The field `stub` of a request's JSON body is a `Script`: `"stub": {"ttft_s": 0.5, "fail": "cut"}`.
"""

import argparse
import asyncio
import collections
import gc
import itertools
import json
import math
import signal
import sys
import time
from io import FileIO
from typing import Any, Literal, cast

import httptools
import msgspec
import uvloop

from loadtests.client.pacer import Pacer

TTFT_S, ITL_S, TOKENS = 0.1, 0.02, 250
"""For requests that name none."""
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 429: "Too Many Requests", 503: "Unavailable"}
_MODELS = b'{"object":"list","data":[{"id":"stub","object":"model","created":0,"owned_by":"stub"}]}'
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
)
_ERROR_FRAME = (
    b'event: error\ndata: {"error":{"message":"the replica was lost","type":"internal_error",'
    b'"param":null,"code":500}}\n\ndata: [DONE]\n\n'
)


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to answer one request. Times in seconds."""

    ttft_s: float = TTFT_S
    """From the request's arrival, or from the last comment, to the first token."""
    itl_s: float = ITL_S
    comments_s: float = 0.0
    """How long comments announce a cold start, before `ttft_s` begins."""
    comment_every_s: float = 1.0
    fail: Literal["error_frame", "cut", "stall", "429", "503"] | None = None
    """`cut` closes the connection; `stall` leaves it open and silent."""
    fail_after_tokens: int = 0
    fail_times: int | None = None
    """How often the same body fails before it succeeds; None: always."""
    retry_after_s: int = 1


class Request(msgspec.Struct, frozen=True):
    model: str = "stub"
    messages: list[dict[str, Any]] = []
    prompt: str | list[Any] = ""
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream_options: dict[str, Any] | None = None
    stub: Script = Script()

    @property
    def text(self) -> str:
        """The last message, or the prompt."""
        return str(self.messages[-1].get("content")) if self.messages else str(self.prompt)

    @property
    def tokens(self) -> int:
        return self.max_completion_tokens or self.max_tokens or TOKENS


class Served(msgspec.Struct):
    """The truth about one request. Seconds are of `time.monotonic`, which all processes share."""

    number: int
    prompt: str
    """Its first 80 characters, by which a test finds it."""
    arrived_s: float
    status: int = 0
    comments: int = 0
    written_s: list[float] = []
    """When each token's frame went to the kernel or its queue."""
    outcome: str = "cancelled"
    """`done`, the failure that was asked for, or `cancelled`: the client went away."""
    ended_s: float = 0.0


class Site:
    """The state that all connections share."""

    def __init__(self, pacer: Pacer, log: FileIO) -> None:
        self.pacer, self.log = pacer, log
        self.numbers = itertools.count()
        self.failed: collections.Counter[bytes] = collections.Counter()

    def fails(self, body: bytes, script: Script) -> bool:
        """Count a request that asks to fail; return whether it does."""
        if script.fail is None:
            return False
        self.failed[body] += 1
        return script.fail_times is None or self.failed[body] <= script.fail_times


class Reply:
    """One streamed completion, from its request's arrival to its record."""

    def __init__(
        self, transport: asyncio.Transport, site: Site, request: Request, *, chat: bool, fails: bool
    ) -> None:
        self._transport, self._site, self._request, self._script = transport, site, request, request.stub
        self._chat, self._fail = chat, request.stub.fail if fails else None
        number = next(site.numbers)
        self._served = Served(number, request.text[:80], time.monotonic())
        self._first_s = self._served.arrived_s + request.stub.comments_s + request.stub.ttft_s
        kind, name = ("chat.completion.chunk", "chatcmpl") if chat else ("text_completion", "cmpl")
        self._head = (
            f'data: {{"id":"{name}-stub-{number}","object":"{kind}","created":{int(time.time())},'
            f'"model":{json.dumps(request.model)},"choices":['
        )

    def start(self) -> None:
        """Refuse at once, or schedule the first comment or token."""
        if self._fail in ("429", "503"):
            self._served.status = int(self._fail)
            error = {"error": {"message": f"refused with {self._fail}", "code": int(self._fail)}}
            retry = f"Retry-After: {self._script.retry_after_s}\r\n"
            answer(self._transport, int(self._fail), msgspec.json.encode(error), retry)
            self.end(self._fail)
        else:
            first_s = self._served.arrived_s if self._script.comments_s else self._first_s
            self._site.pacer.at(first_s, self._step)

    def _step(self) -> None:
        """Write the comment or token that is due, then schedule the next."""
        if self._served.ended_s:
            return
        if self._served.comments * self._script.comment_every_s < self._script.comments_s:
            self._comment()
        elif self._fail is not None and len(self._served.written_s) >= self._script.fail_after_tokens:
            if self._fail == "error_frame":
                self._send(_ERROR_FRAME, last=True)
            elif self._fail == "cut":
                self._transport.close()
            self.end(self._fail)
        else:
            self._token(len(self._served.written_s))

    def _comment(self) -> None:
        served, script = self._served, self._script
        waited_s = served.comments * script.comment_every_s
        state = f"phase=imports eta_s={math.ceil(script.comments_s - waited_s)} waited_s={int(waited_s)}"
        self._send(f": waiting for a replica of {self._request.model}: {state}\n\n".encode())
        served.comments += 1
        next_s = served.comments * script.comment_every_s
        more = next_s < script.comments_s
        self._site.pacer.at(served.arrived_s + next_s if more else self._first_s, self._step)

    def _token(self, index: int) -> None:
        self._send(self._frame(index))
        self._served.written_s.append(time.monotonic())
        if index + 1 < self._request.tokens:
            self._site.pacer.at(self._first_s + (index + 1) * self._script.itl_s, self._step)
        else:
            self._send(self._last(), last=True)
            self.end("done")

    def _frame(self, index: int) -> bytes:
        """The frame of token `index`, shaped like vLLM's; a chat's first follows the frame with the role."""
        reason = '"length"' if index == self._request.tokens - 1 else "null"
        if not self._chat:
            choice = f'"text":" t{index}","logprobs":null,"finish_reason":{reason},"stop_reason":null'
            return f'{self._head}{{"index":0,{choice}}}]}}\n\n'.encode()
        end = f'"logprobs":null,"finish_reason":{reason},"token_ids":null}}]}}\n\n'
        frame = f'{self._head}{{"index":0,"delta":{{"content":" t{index}"}},{end}'
        if index:
            return frame.encode()
        role = '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}'
        return f"{self._head}{role}\n\n{frame}".encode()

    def _last(self) -> bytes:
        """The usage, if it was asked for, and the end. The words of a prompt count as its tokens."""
        if not (self._request.stream_options or {}).get("include_usage"):
            return b"data: [DONE]\n\n"
        prompt, tokens = len(self._request.text.split()), self._request.tokens
        usage = {"prompt_tokens": prompt, "total_tokens": prompt + tokens, "completion_tokens": tokens}
        return f'{self._head}],"usage":{json.dumps(usage)}}}\n\ndata: [DONE]\n\n'.encode()

    def _send(self, data: bytes, *, last: bool = False) -> None:
        head = b"" if self._served.status else _STREAM_HEAD
        self._served.status = 200
        self._transport.write(b"%b%x\r\n%b\r\n%b" % (head, len(data), data, b"0\r\n\r\n" if last else b""))

    def end(self, outcome: str) -> None:
        """Write the record, once."""
        if not self._served.ended_s:
            self._served.outcome, self._served.ended_s = outcome, time.monotonic()
            self._site.log.write(msgspec.json.encode(self._served) + b"\n")


class Connection(asyncio.Protocol):
    """One keep-alive connection: requests come one after the other."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._parser = httptools.HttpRequestParser(self)
        self._url, self._body = b"", b""
        self._reply: Reply | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._reply is not None:
            self._reply.end("cancelled")

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        url, body, self._url, self._body = self._url, self._body, b"", b""
        if url.endswith(b"/completions"):
            self._complete(body, chat=url.endswith(b"/chat/completions"))
        elif url.endswith((b"/models", b"/health")):
            answer(self._transport, 200, _MODELS)
        else:
            answer(self._transport, 404, b'{"error":{"message":"no such path"}}')

    def _complete(self, body: bytes, *, chat: bool) -> None:
        try:
            request = msgspec.json.decode(body, type=Request)
        except msgspec.DecodeError as error:
            detail = {"error": {"message": str(error), "code": 400}}
            answer(self._transport, 400, msgspec.json.encode(detail))
            return
        fails = self._site.fails(body, request.stub)
        self._reply = Reply(self._transport, self._site, request, chat=chat, fails=fails)
        self._reply.start()


def answer(transport: asyncio.Transport, status: int, body: bytes, more: str = "") -> None:
    """Write a whole response; `more` are header lines."""
    head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: application/json\r\n{more}"
    transport.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)


async def _serve(log: FileIO) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    with Pacer(loop) as pacer:
        site = Site(pacer, log)
        server = await loop.create_server(lambda: Connection(site), "127.0.0.1", 0, backlog=1024)
        print(f"port {server.sockets[0].getsockname()[1]}", flush=True)
        gc.collect()
        gc.freeze()
        await stop.wait()
        server.close()


def main(argv: list[str]) -> None:
    """Serve until SIGINT or SIGTERM; the first line of output is `port N`."""
    parser = argparse.ArgumentParser(prog="python -m tests.loadtests.stub_server")
    parser.add_argument("--log", required=True, help="JSON lines, one for each completion request")
    given = parser.parse_args(argv)
    with FileIO(given.log, "w") as log, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(log))


if __name__ == "__main__":
    main(sys.argv[1:])
