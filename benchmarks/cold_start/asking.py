"""Requests, and when their first tokens came."""

import asyncio
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from benchmarks.common.server_process import HOST, ServerError, ServerProcess

_LOOK_S = 0.02
_PROMPT = list(range(301, 309))
"""Ids that every vocabulary has."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A request: when it was sent, and when its first token came, in Unix seconds."""

    sent: float
    token: float


def url_of(server: ServerProcess) -> str:
    """Return where it listens."""
    return f"http://{HOST}:{server.port}"


async def ask(session: aiohttp.ClientSession, server: ServerProcess, model: str) -> Answer:
    """Send one request. While nothing listens there, try again. Comments of a held stream are no tokens.

    Raises:
        ServerError: for an answer that is an error or ends before a token, and if the server ends.
    """
    url = url_of(server)
    body = {"model": model, "prompt": _PROMPT, "max_tokens": 2, "ignore_eos": True, "stream": True}
    while True:
        sent = time.time()
        try:
            async with session.post(f"{url}/v1/completions", json=body) as reply:
                if reply.status != 200:
                    raise ServerError(f"{url} answers {reply.status}: {(await reply.text())[:300]}")
                async for line in reply.content:
                    if line.startswith(b"event: error"):
                        raise ServerError(f"{url} ended the stream with an error")
                    if line.startswith(b"data: {"):
                        return Answer(sent, time.time())
            raise ServerError(f"{url} ended the stream before its first token")
        except aiohttp.ClientConnectorError:
            server.check_alive()
            await asyncio.sleep(_LOOK_S)


async def ask_until_up(
    session: aiohttp.ClientSession, server: ServerProcess, model: str, burst: int, replicas: int
) -> Answer:
    """Send bursts until one has met `replicas` replicas in service; return the first answer of all."""
    answers: list[Answer] = []
    while True:
        async with session.get(f"{url_of(server)}/ready") as reply:
            up = (await reply.json())["models"][model]["replicas"]
        answers += await asyncio.gather(*(ask(session, server, model) for _ in range(burst)))
        if up >= replicas:
            return min(answers, key=lambda answer: answer.token)


def answered(lines: Iterable[tuple[str, str]]) -> dict[str, Answer]:
    """Return each replica's first answer.

    Args:
        lines: The request logs: the name of a replica and one line each.
    """
    found: dict[str, Answer] = {}
    for name, line in lines:
        one = json.loads(line)
        if one["ttft_s"] is not None:
            answer = Answer(one["arrived_at"], one["arrived_at"] + one["ttft_s"])
            found[name] = min(answer, found.get(name, answer), key=lambda each: each.token)
    return found


def logged(folder: Path) -> list[tuple[str, str]]:
    """Return the whole lines of the request logs in a folder, each with its replica's name."""
    return [
        (path.name.split(".")[3], line)
        for path in sorted(folder.glob("requests.*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True)
        if line.endswith("\n")
    ]
