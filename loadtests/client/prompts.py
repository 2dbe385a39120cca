"""The body of a request: a pure function of the seed, the request's place in the plan and its prefix.

Tokens are drawn with SHAKE-128 rather than a library's random generator: the same scenario asks for the
same prompts whatever version of Python or numpy runs it, and any part can be drawn without those before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence

import numpy as np

from loadtests.client.target import Target
from loadtests.planned import Planned

SLICE_TOKENS = 2048
"""Drawn and written at once, in about 0.15 ms: what a client does between two looks at its sockets."""
_CACHED_BYTES = 32 * 2**20
"""Of shared prefixes; past this they are written anew."""


def body(planned: Planned, target: Target) -> bytes:
    """The JSON body of one request. For many, a `Prompts` is faster. ValueError as `Prompts.parts`."""
    return b"".join(Prompts(target).parts(planned))


class Prompts:
    """Writes the bodies of requests to one target."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._ids = [b"%d" % token for token in target.token_ids]
        self._words = [json.dumps(word)[1:-1].encode() for word in target.words]
        self._prefixes: dict[tuple[str, str, int, int], bytes] = {}
        self._cached = 0

    def parts(self, planned: Planned) -> Iterator[bytes]:
        """The body in pieces of at most `SLICE_TOKENS` tokens, so that a long one need not be made at once.

        Raises:
            ValueError: there is nothing to draw a prompt of this API from.
        """
        if planned.api == "chat":
            yield from self._chat(planned)
        else:
            yield from self._completion(planned)

    def _completion(self, planned: Planned) -> Iterator[bytes]:
        if not self._ids:
            raise ValueError("token_ids is empty: a prompt of the completions API needs at least one")
        shared = min(planned.prefix_tokens, planned.prompt_tokens)
        yield self._head(planned) + b'"prompt":['
        if shared:
            yield from self._prefix(planned, shared)
        if shared and planned.prompt_tokens > shared:
            yield b","
        own = _numbers(self._own(planned), planned.prompt_tokens - shared, len(self._ids))
        yield from _written(own, self._ids, b",")
        yield b"]" + self._tail(planned)

    def _chat(self, planned: Planned) -> Iterator[bytes]:
        if not self._words:
            raise ValueError("words is empty: a prompt of the chat API needs at least one")
        shared = min(planned.prefix_tokens, planned.prompt_tokens)
        yield self._head(planned) + b'"messages":['
        if shared:
            yield b'{"role":"system","content":"'
            yield from self._prefix(planned, self._word_count(shared))
            yield b'"},'
        yield b'{"role":"user","content":"'
        count = self._word_count(planned.prompt_tokens - shared)
        yield from _written(_numbers(self._own(planned), count, len(self._words)), self._words, b" ")
        yield b'"}]' + self._tail(planned)

    def _word_count(self, tokens: int) -> int:
        return max(1, round(tokens / self._target.tokens_per_word))

    def _head(self, planned: Planned) -> bytes:
        return b'{"model":%b,' % json.dumps(planned.model or self._target.model).encode()

    def _tail(self, planned: Planned) -> bytes:
        # Greedy: the work of a step does not depend on what sampling the model's defaults ask for.
        # `max_tokens` in chat too: every server that knows ignore_eos takes it, and not all take
        # max_completion_tokens.
        return (
            b',"max_tokens":%d,"temperature":0,"ignore_eos":true,"stream":true,'
            b'"stream_options":{"include_usage":true}}' % planned.output_tokens
        )

    def _own(self, planned: Planned) -> str:
        return f"{self._target.seed}/request/{planned.index}"

    def _prefix(self, planned: Planned, count: int) -> Iterator[bytes]:
        key = (planned.api, planned.kind, planned.prefix, count)
        known = self._prefixes.get(key)
        if known is not None:
            yield known
            return
        parts = []
        source = f"{self._target.seed}/prefix/{planned.kind}/{planned.prefix}"
        pool, between = (self._words, b" ") if planned.api == "chat" else (self._ids, b",")
        for part in _written(_numbers(source, count, len(pool)), pool, between):
            parts.append(part)
            yield part
        whole = b"".join(parts)
        if self._cached + len(whole) > _CACHED_BYTES:
            self._prefixes.clear()
            self._cached = 0
        self._prefixes[key] = whole
        self._cached += len(whole)


def _numbers(source: str, count: int, below: int) -> Iterator[list[int]]:
    """`count` numbers from 0 to `below` - 1, in slices. 32 bits each: even to 4 in 100,000 for 150,000."""
    for start in range(0, count, SLICE_TOKENS):
        size = min(SLICE_TOKENS, count - start)
        drawn = hashlib.shake_128(f"{source}/{start}".encode()).digest(4 * size)
        yield (np.frombuffer(drawn, "<u4") % below).tolist()


def _written(slices: Iterator[list[int]], pool: Sequence[bytes], between: bytes) -> Iterator[bytes]:
    for number, drawn in enumerate(slices):
        text = between.join([pool[one] for one in drawn])
        yield between + text if number else text
