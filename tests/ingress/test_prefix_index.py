"""What an ingress replica knows of the caches of its engine replicas."""

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.api.prompt_prefix import BLOCK_BYTES, PromptPrefix
from serve_app.ingress.prefix_index import PrefixIndex
from serve_app.wire.data_plane import Prefix
from serve_app.wire.signals import BYTES_PER_TOKEN

BLOCK_TOKENS = 128


def prompt(
    *blocks: int, end: int = 0, rest: int = 0, turns: tuple[tuple[int, int], ...] = ()
) -> PromptPrefix:
    return PromptPrefix(len(blocks) * BLOCK_BYTES + rest, blocks, end, turns=turns)


def index(*replicas: str, blocks: int = 100) -> PrefixIndex:
    made = PrefixIndex()
    made.keep(replicas)
    for name in replicas:
        made.resize(name, blocks * BLOCK_TOKENS)
    return made


def test_a_next_turn_finds_the_answer_too() -> None:
    known = index("a", "b")
    known.record_prompt("a", prompt(1, end=77, rest=200), 0)

    turn = prompt(1, 5, 6, turns=((88, 1500), (77, 1100)))
    assert known.match(turn) == {"a": 1100}
    known.record_prompt("b", prompt(1, 5, end=88, rest=10), 0)
    assert known.match(turn) == {"a": 1100, "b": 1500}


def test_only_the_replica_that_is_gone_is_forgotten() -> None:
    known = index("a", "b")
    for name in "ab":
        known.record_prompt(name, prompt(1, 2), 0)

    known.keep(["b", "c"])
    assert known.match(prompt(1, 2)) == {"b": 2 * BLOCK_BYTES}
    known.record_prompt("c", prompt(1), 0)  # it has the bit that was a's
    assert known.match(prompt(1, 2)) == {"b": 2 * BLOCK_BYTES, "c": BLOCK_BYTES}


def test_what_others_sent_counts_and_an_unknown_replica_does_not() -> None:
    known = index("a")
    known.add("a", Prefix([1, 2], 9))
    known.add("z", Prefix([1, 2], 9))
    known.resize("z", 1000)

    assert known.match(prompt(1, 2)) == {"a": 2 * BLOCK_BYTES}


def test_evicted_prompt_evicts_everything_used_before() -> None:
    known = index("a")
    for blocks in ((1, 2), (3, 4), (5, 6)):
        known.record_prompt("a", prompt(*blocks), 0)

    again = prompt(3, 4)
    expected = known.record_prompt("a", again, 2 * BLOCK_BYTES)
    known.learn("a", again, expected, 0, 2 * BLOCK_TOKENS)

    assert known.match(prompt(1, 2)) == {}
    assert known.match(prompt(3, 4)) == {"a": 2 * BLOCK_BYTES}  # it is there again
    assert known.match(prompt(5, 6)) == {"a": 2 * BLOCK_BYTES}


def test_tokens_follow_what_engines_find() -> None:
    """Three bytes a token in prompts, and of what is expected a tenth is never found."""
    known = index("a")
    asked = prompt(*range(1, 31))
    assert known.tokens(known.record_prompt("a", asked, 0)) == 0
    known.learn("a", asked, known.record_prompt("a", asked, 0), 0, asked.size // 3)

    expected = known.record_prompt("a", asked, asked.size)
    assert known.tokens(expected) == asked.size // 3
    for _ in range(100):
        known.learn("a", asked, expected, round(asked.size / 3 * 0.9), asked.size // 3)
    assert known.tokens(expected) == round(asked.size / 3 * 0.9)


def test_new_prompts_do_not_change_the_ratio_of_cached_ones() -> None:
    """Conversations of two bytes a token, and a flood of one and a half."""
    known = index("a", blocks=10_000)
    asked = prompt(*range(1, 21))
    known.record_prompt("a", asked, 0)
    for _ in range(50):
        known.learn("a", asked, known.record_prompt("a", asked, asked.size), asked.size // 2, asked.size // 2)
    for number in range(500):
        new = prompt(1000 + number)
        known.learn("a", new, known.record_prompt("a", new, 0), 0, round(new.size / 1.5))

    assert known.tokens(known.record_prompt("a", asked, asked.size)) == pytest.approx(
        asked.size / 2, rel=0.01
    )


def test_other_bytes_per_token_are_no_evictions() -> None:
    """One kind has two bytes a token, the other one six; both are found where they are expected."""
    known = index("a", blocks=1000)
    kinds = [
        (prompt(*range(100 * kind, 100 * kind + 20)), bytes_per_token)
        for kind, bytes_per_token in ((1, 2), (2, 6))
    ]
    for asked, _ in kinds:
        known.record_prompt("a", asked, 0)
    for _ in range(20):
        for asked, bytes_per_token in kinds:
            matched = known.match(asked)["a"]
            assert matched == asked.size
            tokens = asked.size // bytes_per_token
            known.learn("a", asked, known.record_prompt("a", asked, matched), tokens - 1, tokens)


def test_unprefilled_prompt_removes_only_its_new_blocks() -> None:
    known = index("a")
    known.record_prompt("a", prompt(1, 2, end=7), 0)
    longer = prompt(1, 2, 3, 4, end=8)

    known.forget_unprefilled("a", longer, known.record_prompt("a", longer, 2 * BLOCK_BYTES))

    assert known.match(longer) == {"a": 2 * BLOCK_BYTES}
    known.forget_unprefilled("z", longer, known.record_prompt("z", longer, 0))


def test_a_wrong_guess_at_an_answer_evicts_nothing() -> None:
    """Reasoning is not in the next turn."""
    known = index("a")
    for number in range(30):
        known.record_prompt("a", prompt(1, 100 + number), 0)
    turn = prompt(1, *range(600, 619), turns=((77, 18 * BLOCK_BYTES),))
    expected = known.record_prompt("a", turn, 18 * BLOCK_BYTES)
    known.learn("a", turn, expected, BLOCK_TOKENS, 20 * BLOCK_TOKENS)

    assert all(known.match(prompt(1, 100 + number)) == {"a": 2 * BLOCK_BYTES} for number in range(30))


def test_images_do_not_change_the_bytes_per_token() -> None:
    known = index("a")
    for size, tokens in ((8 << 20, 12), (40, 40_000), (512, 0)):
        asked = PromptPrefix(size, (1,), 0)
        known.learn("a", asked, known.record_prompt("a", asked, 0), 0, max(tokens, 1))

    assert known.bytes_per_token == BYTES_PER_TOKEN


class Plain:
    """The same without bits: for each replica its blocks, by last use."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.caches: dict[str, OrderedDict[int, None]] = {}

    def record_prompt(self, replica: str, blocks: tuple[int, ...]) -> None:
        cache = self.caches.setdefault(replica, OrderedDict())
        for block in reversed(blocks):
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > self.most:
            cache.popitem(last=False)

    def match(self, blocks: tuple[int, ...]) -> dict[str, int]:
        found = {}
        for name, cache in self.caches.items():
            depth = next((number for number, block in enumerate(blocks) if block not in cache), len(blocks))
            if depth:
                found[name] = depth * BLOCK_BYTES
        return found


def chain(path: list[int]) -> tuple[int, ...]:
    """Hashes that stand for all that came before."""
    return tuple(hash(tuple(path[: number + 1])) or 1 for number in range(len(path)))


paths = st.lists(st.integers(0, 2), min_size=1, max_size=6)
steps = st.lists(st.tuples(st.sampled_from("abc"), paths, st.booleans()), max_size=60)


@given(steps=steps, most=st.integers(1, 12))
def test_it_agrees_with_the_plain_way(steps: list[tuple[str, list[int], bool]], most: int) -> None:
    known, plain = index("a", "b", "c", blocks=most), Plain(most)
    for replica, path, gone in steps:
        blocks = chain(path)
        assert known.match(prompt(*blocks)) == plain.match(blocks)
        if gone:
            known.keep([name for name in "abc" if name != replica])
            known.keep("abc")
            known.resize(replica, most * BLOCK_TOKENS)
            plain.caches.pop(replica, None)
        else:
            known.record_prompt(replica, prompt(*blocks), 0)
            plain.record_prompt(replica, blocks)
