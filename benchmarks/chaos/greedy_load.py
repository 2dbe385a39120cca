"""The load of `--losses`: as `benchmarks.chaos.load`, with chats that are kept word by word.

Beside `{"streaming": …}` it writes `{"heard": {…}}` for each stream that is over.
"""

import asyncio
import json
import signal
import sys
from dataclasses import asdict
from itertools import count
from typing import Any

import aiohttp

from benchmarks.chaos.greedy import SUBJECTS, Heard, Listener, body
from benchmarks.chaos.load import Job, Load, Received, run, stream
from benchmarks.chaos.observed import Outcome


class GreedyChat:
    """One chat about a subject."""

    path = "/v1/chat/completions"

    def __init__(self, job: Job, subject: str) -> None:
        self.subject, self.body = subject, body(job.model, subject, job.tokens)
        self._listener = Listener()
        self.feed = self._listener.feed

    @property
    def pieces(self) -> list[float]:
        """When each piece arrived."""
        return self._listener.pieces

    @property
    def error(self) -> str:
        """The error event, in words."""
        return self._listener.error

    @property
    def output_tokens(self) -> int | None:
        """As the final usage says."""
        return self._listener.usage.get("completion_tokens")

    def record(self, received: Received) -> tuple[Outcome, dict[str, Any]]:
        """How it ended, and what the parent is told."""
        ended, said = stream(received), self._listener
        heard = Heard(
            self.subject, received.opened_s, received.ended_s, ended.outcome, ended.error,
            said.text, said.finish_reasons, said.usage, said.logprobs, said.answers, said.roles, said.moves,
        )  # fmt: skip
        return ended.outcome, {"heard": asdict(heard)}


class GreedyLoad(Load):
    """The streams of one process, about one subject after the other."""

    def __init__(self, job: Job, session: aiohttp.ClientSession) -> None:
        super().__init__(job, session)
        self._numbers = count()

    def _next(self) -> GreedyChat:
        return GreedyChat(self._job, SUBJECTS[next(self._numbers) % len(SUBJECTS)])


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # A Ctrl-C reaches us too; our input's end ends us.
    asyncio.run(run(Job(**json.loads(sys.argv[1])), GreedyLoad))
