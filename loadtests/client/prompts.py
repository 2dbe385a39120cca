"""The bodies of requests, made before their time.

A body is a pure function of the seed, the request's place in the plan, its prefix and, in a later turn of a
conversation, the turns before. Tokens are drawn with SHAKE-128, not with a library's random generator: the
prompts of a scenario are the same in every version of Python and numpy, and any part can be drawn without
those before. They come from a vocabulary that every model has; asking a tokenizer would wake a model at zero.
"""

import asyncio
import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from loadtests.plan import Planned

TOKEN_IDS = tuple(range(1000, 2000))
"""Ordinary tokens of every vocabulary. Lower ids may be special and byte tokens (a thousand of them in
Mistral's Tekken), and the smallest vocabularies end above."""

_TEXT = """
about above across after again air all almost along also always an and animals another answer any
are around as asked at away back be because been began best better between both but by called came
can change city come could day days did do does down each end enough even every eyes far feet few
find first five food for found four from good had hard has have hear heard help here home house how
if important in into is it its keep kind knew know land large last learn left let life light like
little live long look looked made make man many may me means more most much must my name near need
never new next night no now number of often old on once one only or other others our out over own
part parts people place play put read room said same saw say sea second see sentence set she should
show side small so some something soon sound still story such sun take tell than that the their them
then there they things think this thought three through time times to today together told too took
toward try turned two under until up us use used very want was water way we well went were what when
where which while white who whole will with without words work world would write year years young
your
"""
WORDS = tuple(_TEXT.split())
"""Frequent enough in English to be one token each, with the space before them."""

SLICE_TOKENS = 2048
"""Tokens drawn and written between two looks at the sockets, in about 0.15 ms."""
_CACHED_BYTES = 32 * 2**20
"""Shared prefixes are kept up to this size; beyond it the cache starts anew."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server that speaks the OpenAI API, and the vocabulary of its model."""

    url: str
    """Without the path `/v1/...`."""
    headers: Mapping[str, str]
    """Sent with every request, `Authorization` for instance."""
    model: str
    """For requests that name none."""
    token_ids: tuple[int, ...] = TOKEN_IDS
    """Prompts of the completions API are drawn from these: no special tokens."""
    words: tuple[str, ...] = WORDS
    """Prompts of the chat API are drawn from these."""
    tokens_per_word: float = 1.0
    """Tokens of a word, on average."""
    seed: int = 0
    context_tokens: Mapping[str, int | None] = field(default_factory=dict)
    """The context of each model; None, or no entry, where it is not known."""


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

    def later_parts(self, planned: Planned, history: bytes) -> Iterator[bytes]:
        """The body of a later turn, as `parts`; `history` joins `turn_json` of the turns before by commas."""
        yield from self._chat(planned, history)

    def turn_json(self, planned: Planned, answer: str) -> bytes:
        """The message of a turn and the answer to it, as JSON for the history of its conversation."""
        return b'%b,{"role":"assistant","content":%b}' % (
            b"".join(self._message(planned)),
            json.dumps(answer).encode(),
        )

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

    def _chat(self, planned: Planned, history: bytes = b"") -> Iterator[bytes]:
        if not self._words:
            raise ValueError("words is empty: a prompt of the chat API needs at least one")
        shared = min(planned.prefix_tokens, planned.prompt_tokens)
        yield self._head(planned) + b'"messages":['
        if shared:
            yield b'{"role":"system","content":"'
            yield from self._prefix(planned, self._word_count(shared))
            yield b'"},'
        if history:
            yield history + b","
        yield from self._message(planned)
        yield b"]" + self._tail(planned)

    def _message(self, planned: Planned) -> Iterator[bytes]:
        yield b'{"role":"user","content":"'
        count = self._word_count(planned.own_tokens)
        yield from _written(_numbers(self._own(planned), count, len(self._words)), self._words, b" ")
        yield b'"}'

    def _word_count(self, tokens: int) -> int:
        return max(1, round(tokens / self._target.tokens_per_word))

    def _head(self, planned: Planned) -> bytes:
        return b'{"model":%b,' % json.dumps(planned.model or self._target.model).encode()

    def _tail(self, planned: Planned) -> bytes:
        # Greedy: the work of a step does not depend on the sampling defaults of the model.
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


AHEAD_S = 5.0
"""A body is made this long before its time: one of 100,000 tokens takes 10 ms, which would delay others."""
READY_BYTES = 128 * 2**20
"""Memory of finished bodies; one body is made however large it is."""


async def make_body(prompts: Prompts, planned: Planned, history: bytes = b"") -> bytes:
    """One body, with a look at the sockets after each slice. `history` as for `Prompts.later_parts`."""
    parts = []
    for part in prompts.later_parts(planned, history) if history else prompts.parts(planned):
        parts.append(part)
        await asyncio.sleep(0)
    return b"".join(parts)


class Bodies:
    """Makes the bodies of a plan `AHEAD_S` before they are due. `begin` is the plan's start, monotonic."""

    def __init__(self, prompts: Prompts, ordered: Sequence[Planned], begin: float) -> None:
        self._prompts, self._ordered, self._begin = prompts, ordered, begin
        self._ready: dict[int, bytes] = {}
        self._ready_bytes = 0
        self._late: set[int] = set()
        self._room = asyncio.Event()

    async def keep_ahead(self) -> None:
        """Make them all, in order."""
        for planned in self._ordered:
            while self._ready_bytes > READY_BYTES:
                self._room.clear()
                await self._room.wait()
            early_s = self._begin + planned.at_s - time.monotonic() - AHEAD_S
            if early_s > 0:
                await asyncio.sleep(early_s)
            if planned.index in self._late:
                self._late.discard(planned.index)
                continue
            body = await make_body(self._prompts, planned)
            if planned.index in self._late:
                self._late.discard(planned.index)
                continue
            self._ready[planned.index] = body
            self._ready_bytes += len(body)

    async def take(self, planned: Planned) -> bytes:
        """The body of a request that is due: at once, or made now if its turn had not come."""
        body = self._ready.pop(planned.index, None)
        if body is None:
            self._late.add(planned.index)
            return await make_body(self._prompts, planned)
        self._ready_bytes -= len(body)
        self._room.set()
        return body
