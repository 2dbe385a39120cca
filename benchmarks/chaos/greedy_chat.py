"""One greedy chat in one of three APIs: its request, and its answer as the client sees it.

The answer to a greedy request must not depend on which replicas were lost under it.
"""

import json
from itertools import pairwise
from typing import Any

from benchmarks.chaos.trace import Outcome, Stream

SUBJECTS = (
    "sea", "moon", "rain", "harbour", "winter", "fox", "ships", "bread", "trains", "cats", "snow", "kite",
)  # fmt: skip
"""Each makes a stream of its own. Every second one is asked for log-probabilities, too."""
LOGPROB_TOLERANCE = 0.1
"""After a move the delivered tokens are prefilled together, which rounds bfloat16 differently from decoding:
by 0.04 at most in 120 moves (`tests/engine/test_continued_call.py`)."""
PAUSE_S = 1.0
"""A stream that stood still for longer was interrupted, as its reader sees it."""
HUNG_S = 5.0
"""A stream hangs if it has stood still for longer when the client gives up."""
_MOVED = b": continued on another replica"


PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}
"""By the names of the APIs in options."""
_ENDS = {"chat": "[DONE]", "messages": "message_stop", "responses": "response.incomplete"}


def request_body(model: str, subject: str, tokens: int, api: str = "chat") -> dict[str, Any]:
    """The request for a greedy answer of exactly `tokens` tokens; of at most as many in `messages`."""
    asked = [{"role": "user", "content": f"A long story about the {subject}."}]
    body = {"model": model, "temperature": 0, "stream": True}
    if api == "responses":
        return {**body, "input": asked, "max_output_tokens": tokens, "ignore_eos": True}
    body |= {"messages": asked, "max_tokens": tokens}
    if api == "messages":
        return body
    logprobs = SUBJECTS.index(subject) % 2 == 1
    return {**body, "ignore_eos": True, "stream_options": {"include_usage": True}, "logprobs": logprobs}


class GreedyChat:
    """Follows one stream. `feed` takes its bytes, cut anywhere, and the time at which they came."""

    def __init__(self, subject: str, tokens: int, opened_s: float, api: str = "chat") -> None:
        self._subject, self._tokens, self._opened_s, self._api = subject, tokens, opened_s, api
        self.status = 0
        """0 until an answer begins."""
        self.failure = ""
        """The failure of the connection, in words."""
        self.given_up = False
        """The client closed the stream, because the event was over."""
        self.pieces_s: list[float] = []
        """When each piece with generated tokens came."""
        self._done = False
        self._error = ""
        self._found: dict[str, Any] = {
            "text": "", "finish_reasons": [], "usage": {}, "logprobs": [], "roles": 0, "moves": [],
        }  # fmt: skip
        self._answers: set[tuple[str, int]] = set()
        self._moved_s: float | None = None
        self._rest = b""

    def feed(self, data: bytes, now: float) -> None:
        """Take the next bytes of the body."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(_MOVED):
                self._moved_s = self.pieces_s[-1] if self.pieces_s else now
            elif line.startswith(b"data: {"):
                event = json.loads(line[len(b"data: ") :])
                (self._read_event if self._api == "chat" else self._read_named)(event, now)
            elif line.startswith(b"data: [DONE]"):
                self._done = True

    def _read_event(self, event: dict[str, Any], now: float) -> None:
        if "error" in event:
            self._error = f"{event['error'].get('code')}: {event['error'].get('message')}"
            return
        self._answers.add((event["id"], event["created"]))
        for choice in event["choices"]:
            self._read_choice(choice, now)
        if event.get("usage"):
            names = ("prompt_tokens", "completion_tokens", "total_tokens")
            self._found["usage"] = {name: event["usage"][name] for name in names}

    def _read_choice(self, choice: dict[str, Any], now: float) -> None:
        found = self._found
        if choice.get("finish_reason"):
            found["finish_reasons"].append(choice["finish_reason"])
        if "role" in choice["delta"]:
            found["roles"] += 1
            return
        for one in (choice.get("logprobs") or {}).get("content") or ():
            found["logprobs"].append((one["token"], one["logprob"]))
        self._add(choice["delta"].get("content") or "", now)

    def _add(self, text: str, now: float) -> None:
        self._found["text"] += text
        self.pieces_s.append(now)
        if self._moved_s is not None:
            self._found["moves"].append((self._moved_s, now))
            self._moved_s = None

    def _read_named(self, event: dict[str, Any], now: float) -> None:
        """Read an event of `messages` or `responses`, which have names."""
        kind, found = event["type"], self._found
        whole = event.get("message") or event.get("response") or {}
        if whole:
            self._answers.add((whole["id"], 0))
        if kind in ("content_block_delta", "response.output_text.delta"):
            delta = event["delta"]
            self._add(delta if isinstance(delta, str) else delta["text"], now)
        elif kind in ("content_block_start", "response.content_part.added"):
            found["roles"] += 1
        elif kind in ("message_delta", "response.incomplete"):
            usage = event.get("usage") or whole["usage"]
            found["usage"] = {"completion_tokens": usage["output_tokens"]}
            found["finish_reasons"].append(whole.get("status") or event["delta"]["stop_reason"])
        elif kind == "error":
            error = event["error"]
            self._error = f"{error.get('code') or error['type']}: {error['message']}"
        self._done |= kind in (_ENDS[self._api], "response.failed") or (
            kind == "error" and self._api == "messages"
        )

    def end(self, now: float) -> Stream:
        """The record of the stream, which is over."""
        times = [*self.pieces_s, now]
        pause_s = max((after - before for before, after in pairwise(times)), default=0.0)
        outcome, error = self._outcome(pause_s, now)
        return Stream(
            self._subject, self._opened_s, now, outcome, error, pause_s, api=self._api,
            answers=len(self._answers), **self._found,
        )  # fmt: skip

    def _outcome(self, pause_s: float, now: float) -> tuple[Outcome, str]:
        if self.given_up:
            idle_s = now - (self.pieces_s[-1] if self.pieces_s else self._opened_s)
            return ("hung", f"nothing for {idle_s:.1f} s") if idle_s > HUNG_S else ("open", "")
        if self.status != 200:
            return "refused", self.failure
        if self._error:
            return ("error" if self._done else "cut"), self._error
        if not self._done:
            return "cut", self.failure or f"the stream ended without {_ENDS[self._api]}"
        tokens = self._found["usage"].get("completion_tokens")
        if tokens != self._tokens and "end_turn" not in self._found["finish_reasons"]:
            return "cut", f"{_ENDS[self._api]} after {tokens} of {self._tokens} tokens"
        return ("paused" if pause_s > PAUSE_S else "whole"), ""


def differences(stream: Stream, undisturbed: Stream) -> list[str]:
    """The fields in which a whole stream differs from an undisturbed one about the same subject."""
    names = ("text", "finish_reasons", "usage", "answers", "roles")
    found = [name for name in names if getattr(stream, name) != getattr(undisturbed, name)]
    pairs = zip(stream.logprobs, undisturbed.logprobs, strict=False)
    alike = len(stream.logprobs) == len(undisturbed.logprobs) and all(
        token == other and abs(figure - expected) <= LOGPROB_TOLERANCE
        for (token, figure), (other, expected) in pairs
    )
    return found if alike else [*found, "logprobs"]
