"""An index of the prefixes that each engine replica has cached, as far as this process knows.

The index has the size of each replica's cache and evicts as vLLM does: the least recently used block first,
and the end of a prompt before its beginning. Engine replicas correct the index. They report the true number
of cached tokens, and the prefixes that other ingress replicas sent them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

from serve_app.api.prompt_prefix import BLOCK_BYTES, PromptPrefix
from serve_app.wire.data_plane import Prefix
from serve_app.wire.signals import BYTES_PER_TOKEN

MOST_PROMPT_TOKENS = 32_768
"""The bound on an estimated prompt where `max_model_len` is not set. An image of a thousand tokens may take
megabytes. Without a bound, its estimate would keep all other requests away from its replica."""
_UNKNOWN_CACHE_TOKENS = 32_768
"""The size of a cache until its replica reports it: a long prompt, and less than any GPU's cache."""
FADE = 0.99
"""Ratios are means over about a hundred prompts."""
_LEAST_BYTES, _MOST_BYTES = 1.0, 8.0
"""Prompts outside these bytes per token do not count as text: they have images, or mostly spaces."""
_SURE_SHARE = 0.9
_SLACK_TOKENS = 128
"""Blocks were evicted if the cached tokens, plus the slack, are below this share of the expected tokens.
Parts of a prompt differ by some 10 % in bytes per token. A cache has whole blocks of up to 128 tokens."""


@dataclass(slots=True)
class Ratio:
    """The ratio of two sums, which fade."""

    amount: float = 0.0
    other: float = 0.0

    def learn(self, amount: float, other: float) -> None:
        self.amount = self.amount * FADE + amount
        self.other = self.other * FADE + other

    def value(self, unknown: float) -> float:
        """Return the ratio; `unknown` before the first prompt."""
        return self.amount / self.other if self.other else unknown


@dataclass(slots=True)
class _Cache:
    """The blocks and prompt ends in one replica's cache: the last use of each hash, the oldest first."""

    bit: int
    most: int
    last_use: OrderedDict[int, int] = field(default_factory=OrderedDict)


class Expected(NamedTuple):
    """The part of a prompt that is expected in its replica's cache."""

    size: int
    """Bytes."""
    last_uses: tuple[int, ...] = ()
    """The last use of each cached block before this prompt."""
    use: int = 0
    """The number of this use."""


NOTHING = Expected(0)


class PrefixIndex:
    """The prefixes in the caches of one deployment's replicas. For one event loop."""

    def __init__(self) -> None:
        self._caches: dict[str, _Cache] = {}
        self._names: dict[int, str] = {}
        """The names of replicas, by bit."""
        self._taken = 0
        """All bits of replicas."""
        self._holders: dict[int, int] = {}
        """The bits of the replicas that have a hash cached, by hash."""
        self._uses = 0
        self._bytes_per_token = Ratio()
        """The ratio of whole prompts."""
        self._bytes_per_found_token = Ratio()
        """The ratio of the parts expected in caches. It differs: prompts that share nothing may be of another
        kind, caches have whole blocks, and answers have other bytes per token."""

    @property
    def bytes_per_token(self) -> float:
        """The model's ratio, by the counts that engines have reported."""
        return self._bytes_per_token.value(BYTES_PER_TOKEN)

    def tokens(self, expected: Expected) -> int:
        """Return how many tokens an engine is expected to find in its cache."""
        return round(expected.size / self._bytes_per_found_token.value(self.bytes_per_token))

    def keep(self, replicas: Collection[str]) -> None:
        """Forget all other replicas, and add those that are new."""
        for name in [name for name in self._caches if name not in replicas]:
            cache = self._caches.pop(name)
            self._evict(cache, len(cache.last_use))
            del self._names[cache.bit]
            self._taken ^= cache.bit
        for name in replicas:
            if name not in self._caches:
                bit = ~self._taken & (self._taken + 1)  # the lowest free one
                self._taken |= bit
                self._names[bit] = name
                self._caches[name] = _Cache(bit, self._blocks(_UNKNOWN_CACHE_TOKENS))

    def resize(self, replica: str, tokens: int) -> None:
        """Set the size of the cache of `replica`, in tokens; 0 if it has none."""
        if (cache := self._caches.get(replica)) is not None:
            cache.most = self._blocks(tokens)
            self._evict(cache, len(cache.last_use) - cache.most)

    def match(self, prefix: PromptPrefix, among: Collection[str] = (), most: int = -1) -> dict[str, int]:
        """Return how many bytes of a prompt each replica has cached, without the replicas that have none.

        With `most`, only those `among` others are returned, and the `most` others with the longest matches.
        Among replicas with equal matches, prompts get these in turn.
        """
        caches, names = self._caches, self._names
        found: dict[str, int] = {}
        for mask, size in self._masks(prefix):
            for name in among:
                if name not in found and (cache := caches.get(name)) is not None and mask & cache.bit:
                    found[name] = size
            low = mask & ((1 << self._uses % len(caches)) - 1)
            for bit in chain(_bits(mask ^ low), _bits(low)):
                if not most:
                    break
                if (name := names[bit]) not in found:
                    found[name] = size
                    most -= 1
        return found

    def _masks(self, prefix: PromptPrefix) -> list[tuple[int, int]]:
        """Return masks of the replicas that have a part of a prompt cached, with its bytes, longest first."""
        holders = self._holders
        found: list[tuple[int, int]] = []
        common, depth = -1, 0
        for block in prefix.blocks:
            still = holders.get(block, 0) & common
            if still != common:
                if depth:
                    found.append((common & ~still, depth))
                common = still
                if not still:
                    break
            depth += BLOCK_BYTES
        if depth and common:
            found.append((common, depth))
        for end, size in ((prefix.end, prefix.size), *prefix.turns):
            if mask := holders.get(end, 0):
                found.append((mask, size))
        if len(found) > 1:
            found.sort(key=itemgetter(1), reverse=True)
        return found

    def record_prompt(self, replica: str, prefix: PromptPrefix, matched: int) -> Expected:
        """Record that a prompt goes to `replica`, which has `matched` bytes of it cached."""
        cache = self._caches.get(replica)
        if cache is None:
            return NOTHING
        uses = []
        for block in prefix.blocks:
            used = cache.last_use.get(block)
            if used is None:
                break
            uses.append(used)
        self.add(replica, prefix)
        return Expected(matched, tuple(uses), self._uses)

    def forget_unprefilled(self, replica: str, prefix: PromptPrefix, expected: Expected) -> None:
        """Remove the new blocks of a prompt that `replica` got and did not prefill."""
        cache = self._caches.get(replica)
        if cache is None:
            return
        for block in (prefix.end, *prefix.blocks[len(expected.last_uses) :]):
            if cache.last_use.get(block) == expected.use:
                del cache.last_use[block]
                self._let_go(block, cache.bit)

    def add(self, replica: str, prefix: PromptPrefix | Prefix) -> None:
        """Record that `replica` has cached a prompt, which this or another process sent."""
        cache = self._caches.get(replica)
        if cache is None:
            return
        last_use, holders, bit = cache.last_use, self._holders, cache.bit
        self._uses = use = self._uses + 1
        # The first block comes last, and so is evicted last: without it the others are useless.
        for block in (prefix.end, *reversed(prefix.blocks)):
            if not block:
                continue
            if block in last_use:
                last_use.move_to_end(block)
            else:
                held = holders.get(block)
                holders[block] = bit if held is None else held | bit
            last_use[block] = use
        self._evict(cache, len(last_use) - cache.most)

    def learn(
        self, replica: str, prefix: PromptPrefix, expected: Expected, cached_tokens: int, prompt_tokens: int
    ) -> None:
        """Correct the index with the true number of cached tokens of a prompt sent to `replica`."""
        if _LEAST_BYTES <= prefix.size / prompt_tokens <= _MOST_BYTES:
            self._bytes_per_token.learn(prefix.size, prompt_tokens)
        if not expected.size:
            return
        # The prompt's own bytes per token count: two kinds of traffic may differ by a factor of three.
        expected_tokens = prompt_tokens * expected.size / prefix.size
        # Only blocks are sure to have been cached. That an answer was cached is a guess.
        known = prompt_tokens * len(expected.last_uses) * BLOCK_BYTES / prefix.size
        cache = self._caches.get(replica)
        if cached_tokens + _SLACK_TOKENS >= known * _SURE_SHARE:
            self._bytes_per_found_token.learn(
                expected.size, min(cached_tokens, expected_tokens + _SLACK_TOKENS)
            )
            return
        if cache is None:
            return
        missing = int(len(expected.last_uses) * cached_tokens / known)
        # All blocks last used before the missing one are evicted too.
        gone, last_use = expected.last_uses[missing], cache.last_use
        old = 0
        for used in last_use.values():
            if used > gone:
                break
            old += 1
        self._evict(cache, old)

    def _blocks(self, tokens: int) -> int:
        return int(tokens * self.bytes_per_token / BLOCK_BYTES)

    def _evict(self, cache: _Cache, count: int) -> None:
        for _ in range(count):
            block, _ = cache.last_use.popitem(last=False)
            self._let_go(block, cache.bit)

    def _let_go(self, block: int, bit: int) -> None:
        left = self._holders[block] & ~bit
        if left:
            self._holders[block] = left
        else:
            del self._holders[block]


def _bits(mask: int) -> Iterable[int]:
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit
