"""Greedy streams, heard word by word: what one says must not depend on which replicas were lost under it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.chaos.observed import Outcome

SUBJECTS = (
    "sea", "moon", "rain", "harbour", "winter", "fox", "ships", "bread", "trains", "cats", "snow", "kite",
)  # fmt: skip
"""Each makes a stream of its own. Every second one is asked for log-probabilities, too."""
LOGPROB_TOLERANCE = 0.1
"""Behind a move the delivered tokens are prefilled together, which rounds bfloat16 otherwise than decoding
them did: by 0.04 at most in 120 moves (`tests/engine/test_continued_stream.py`)."""
WHOLE = ("whole", "continued")
"""Outcomes of a stream with every token and `[DONE]`."""
_MOVED = b": continued on another replica"


def body(model: str, subject: str, tokens: int) -> dict[str, Any]:
    """The chat request whose answer is greedy and as long as it is asked for."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": f"A long story about the {subject}."}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "logprobs": SUBJECTS.index(subject) % 2 == 1,
    }


@dataclass(frozen=True, slots=True)
class Heard:
    """One stream that is over. Times are seconds of `time.monotonic`."""

    subject: str
    opened_s: float
    ended_s: float
    outcome: Outcome
    error: str
    text: str
    finish_reasons: Sequence[str]
    usage: dict[str, Any]
    """Without what depends on a replica's cache: prompt and completion tokens."""
    logprobs: Sequence[tuple[str, float]]
    answers: int
    """Different pairs of `id` and `created` among its events: one, if nothing was mixed up."""
    roles: int
    """Events that open an answer."""
    moves: Sequence[tuple[float, float]]
    """For each move to another replica, when the last piece before it came, and when the first behind it."""

    @property
    def whole(self) -> bool:
        """Whether its client got all of an answer."""
        return self.outcome in WHOLE


def differences(heard: Heard, undisturbed: Heard) -> list[str]:
    """In what a whole stream differs from an undisturbed one about the same subject."""
    found = [
        name
        for name in ("text", "finish_reasons", "usage", "answers", "roles")
        if getattr(heard, name) != getattr(undisturbed, name)
    ]
    pairs = list(zip(heard.logprobs, undisturbed.logprobs, strict=False))
    alike = len(heard.logprobs) == len(undisturbed.logprobs) and all(
        token == other and abs(figure - expected) <= LOGPROB_TOLERANCE
        for (token, figure), (other, expected) in pairs
    )
    return found if alike else [*found, "logprobs"]


class Listener:
    """Follows one stream. `feed` takes its bytes, cut anywhere, and the time at which they came."""

    def __init__(self) -> None:
        self.pieces: list[float] = []
        """When each piece with generated tokens came."""
        self.error = ""
        self.text = ""
        self.finish_reasons: list[str] = []
        self.usage: dict[str, Any] = {}
        self.logprobs: list[tuple[str, float]] = []
        self.moves: list[tuple[float, float]] = []
        self.roles = 0
        self._answers: set[tuple[str, int]] = set()
        self._moved_at: float | None = None
        self._rest = b""

    @property
    def answers(self) -> int:
        """How many answers its events belong to."""
        return len(self._answers)

    def feed(self, data: bytes, now: float) -> None:
        """Take the next bytes of the body."""
        *frames, self._rest = (self._rest + data).split(b"\n\n")
        for frame in frames:
            for line in frame.split(b"\n"):
                if line.startswith(_MOVED):
                    self._moved_at = self.pieces[-1] if self.pieces else now
                elif line.startswith(b"data: {"):
                    self._event(json.loads(line[len(b"data: ") :]), now)

    def _event(self, event: dict[str, Any], now: float) -> None:
        if "error" in event:
            self.error = f"{event['error'].get('code')}: {event['error'].get('message')}"
            return
        self._answers.add((event["id"], event["created"]))
        for choice in event["choices"]:
            self._choice(choice, now)
        if event.get("usage"):
            names = ("prompt_tokens", "completion_tokens", "total_tokens")
            self.usage = {name: event["usage"][name] for name in names}

    def _choice(self, choice: dict[str, Any], now: float) -> None:
        if choice.get("finish_reason"):
            self.finish_reasons.append(choice["finish_reason"])
        if "role" in choice["delta"]:
            self.roles += 1
            return
        for one in (choice.get("logprobs") or {}).get("content") or ():
            self.logprobs.append((one["token"], one["logprob"]))
        self.text += choice["delta"].get("content") or ""
        self.pieces.append(now)
        if self._moved_at is not None:
            self.moves.append((self._moved_at, now))
            self._moved_at = None
