"""What the stub server is asked to do, what it says, and what it records of it."""

import json
import math
from typing import Any, Literal

import msgspec

Failure = Literal["error_frame", "cut", "stall", "429", "503"]


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to answer one request: its JSON body's `stub`, or the server's defaults. Times in seconds."""

    ttft_s: float | None = None
    """From the request's arrival, or the last comment if there are any, to the first token."""
    itl_s: float | None = None
    comments_s: float = 0.0
    """How long comments announce a cold start, before `ttft_s` begins."""
    comment_every_s: float = 1.0
    fail: Failure | None = None
    """`cut` closes the connection, `stall` leaves it open and silent."""
    fail_after_tokens: int = 0
    fail_times: int | None = None
    """How often the same body fails before it succeeds; None: always."""
    retry_after_s: int = 1


class Request(msgspec.Struct, frozen=True):
    """What the stub reads of an OpenAI request."""

    model: str = "stub"
    stream: bool = False
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


class Served(msgspec.Struct):
    """The truth about one request. Seconds are of `time.monotonic`, the same in all processes."""

    number: int
    prompt: str
    """Its first 80 characters: how a request is found again."""
    arrived_s: float
    arrived_unix_ns: int
    status: int = 0
    comments: int = 0
    written_s: list[float] = []
    """When each token's frame was handed to the kernel or its queue."""
    outcome: str = "cancelled"
    """`done`, the failure that was asked for, or `cancelled`: the client went away."""
    ended_s: float = 0.0


class Frames:
    """The frames of one reply, shaped like vLLM's."""

    def __init__(self, request: Request, number: int, created: int, tokens: int, *, chat: bool) -> None:
        self._chat, self._tokens, self._request = chat, tokens, request
        kind, name = ("chat.completion.chunk", "chatcmpl") if chat else ("text_completion", "cmpl")
        self._head = (
            f'data: {{"id":"{name}-stub-{number}","object":"{kind}","created":{created},'
            f'"model":{json.dumps(request.model)},"choices":['
        )

    def token(self, index: int) -> bytes:
        """The frame of token `index`; a chat's first comes after the frame with the role, at once."""
        reason = '"length"' if index == self._tokens - 1 else "null"
        if not self._chat:
            choice = f'"text":" t{index}","logprobs":null,"finish_reason":{reason},"stop_reason":null'
            return f'{self._head}{{"index":0,{choice}}}]}}\n\n'.encode()
        end = f'"logprobs":null,"finish_reason":{reason},"token_ids":null}}]}}\n\n'
        frame = f'{self._head}{{"index":0,"delta":{{"content":" t{index}"}},{end}'
        if index:
            return frame.encode()
        role = '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}'
        return f"{self._head}{role}\n\n{frame}".encode()

    def last(self) -> bytes:
        """The usage, if it was asked for, and the end."""
        options = self._request.stream_options or {}
        usage = ""
        if options.get("include_usage"):
            usage = f'{self._head}],"usage":{json.dumps(self.usage())}}}\n\n'
        return f"{usage}data: [DONE]\n\n".encode()

    def whole(self) -> bytes:
        """The reply to a request that did not ask for a stream."""
        text = "".join(f" t{index}" for index in range(self._tokens))
        said = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        kind = "chat.completion" if self._chat else "text_completion"
        choice = {"index": 0, **said, "finish_reason": "length"}
        return json.dumps(
            {
                "id": "stub",
                "object": kind,
                "created": 0,
                "model": self._request.model,
                "choices": [choice],
                "usage": self.usage(),
            }
        ).encode()

    def usage(self) -> dict[str, int]:
        """Tokens; of the prompt, its words."""
        prompt = len(self._request.text.split())
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + self._tokens,
            "completion_tokens": self._tokens,
        }


ERROR_FRAME = (
    b'event: error\ndata: {"error":{"message":"the replica was lost","type":"internal_error",'
    b'"param":null,"code":500}}\n\ndata: [DONE]\n\n'
)


def comment(model: str, left_s: float, waited_s: float) -> bytes:
    """The comment that announces a cold start."""
    state = f"phase=imports eta_s={math.ceil(left_s)} waited_s={int(waited_s)}"
    return f": waiting for a replica of {model}: {state}\n\n".encode()
