"""The bodies of requests: what they ask for, and that they are made before their time."""

import asyncio
import dataclasses
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from loadtests.client.prompts import SLICE_TOKENS, Bodies, Prompts, body
from loadtests.plan import Planned
from tests.loadtests.client.driving import planned, target

HERE = target("http://localhost")


def document(one: Planned, seed: int = 1) -> dict[str, Any]:
    found = json.loads(body(one, target("http://localhost", seed)))
    assert isinstance(found, dict)
    return found


def test_a_completion_asks_for_a_stream_of_exact_length() -> None:
    asked = document(planned(3, prompt_tokens=100, output_tokens=7))
    prompt = asked.pop("prompt")
    assert asked == {
        "model": "tide",
        "max_tokens": 7,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert len(prompt) == 100
    assert set(prompt) <= set(HERE.token_ids)


@pytest.mark.parametrize("count", [1, 2, SLICE_TOKENS, SLICE_TOKENS + 1, 3 * SLICE_TOKENS])
@pytest.mark.parametrize("shared", [0, 1, SLICE_TOKENS + 5, 10**6])
def test_prompts_have_their_exact_length_in_any_slices(count: int, shared: int) -> None:
    assert len(document(planned(0, prompt_tokens=count, prefix_tokens=shared))["prompt"]) == count


def test_draws_do_not_change_with_versions() -> None:
    assert document(planned(0, prompt_tokens=4))["prompt"] == PINNED


def test_prompts_differ_from_their_first_own_token_on() -> None:
    prompts = [document(planned(i, prompt_tokens=64))["prompt"] for i in range(200)]
    blocks = {tuple(prompt[:4]) for prompt in prompts}
    assert len(blocks) == 200


def test_a_prefix_is_shared_within_its_kind_and_number_only() -> None:
    def start(index: int, kind: str = "a", prefix: int = 0, shared: int = 32) -> list[int]:
        one = planned(index, kind=kind, prefix=prefix, prefix_tokens=shared, prompt_tokens=40)
        found = document(one)["prompt"]
        assert isinstance(found, list)
        return found

    assert start(0)[:32] == start(1)[:32]
    assert start(0)[32:] != start(1)[32:]
    assert start(0)[:32] != start(0, prefix=1)[:32]
    assert start(0)[:32] != start(0, kind="b")[:32]
    assert start(0)[:16] == start(0, shared=16)[:16]


def test_a_chat_comes_near_its_length_in_words() -> None:
    asked = document(planned(0, api="chat", prompt_tokens=60, prefix_tokens=15, output_tokens=9))
    system, user = asked["messages"]
    assert (system["role"], user["role"]) == ("system", "user")
    words = {one for word in HERE.words for one in word.split()}
    assert len(document(planned(0, api="chat", prompt_tokens=60))["messages"]) == 1
    assert set(user["content"].split()) <= words
    assert 30 <= len(user["content"].split()) <= 60  # 30 words, one of which is written as two.
    assert 10 <= len(system["content"].split()) <= 20
    assert asked["max_tokens"] == 9


def test_a_later_turn_repeats_all_that_was_said_and_adds_its_message() -> None:
    prompts = Prompts(HERE)
    first = planned(0, api="chat", prompt_tokens=60, prefix_tokens=15, session=0, turn=1)
    later = planned(1, api="chat", prompt_tokens=120, prefix_tokens=15, history_tokens=75, session=0, turn=2)

    history = prompts.turn_json(first, 'line\n"quoted" Küste \ud800')
    before = json.loads(b"".join(prompts.parts(first)))["messages"]
    after = json.loads(b"".join(prompts.later_parts(later, history)))["messages"]

    assert [one["role"] for one in after] == ["system", "user", "assistant", "user"]
    assert after[:2] == before
    assert after[2]["content"] == 'line\n"quoted" Küste \ud800'
    assert 10 <= len(after[3]["content"].split()) <= 40  # 30 tokens in 20 words, some of them written as two.


@pytest.mark.parametrize(("api", "field"), [("completions", "token_ids"), ("chat", "words")])
def test_nothing_to_draw_from_is_an_error(api: str, field: str) -> None:
    empty = dataclasses.replace(HERE, token_ids=(), words=())
    with pytest.raises(ValueError, match=f"{field} is empty"):
        body(planned(0, api=api), empty)


PINNED = [7540, 4518, 4034, 4705]


class Counted(Prompts):
    def __init__(self) -> None:
        super().__init__(HERE)
        self.made: list[int] = []

    def parts(self, planned: Planned) -> Iterator[bytes]:
        self.made.append(planned.index)
        return super().parts(planned)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_bodies_are_made_seconds_ahead_and_no_earlier() -> None:
    prompts = Counted()
    plan = [planned(0), planned(1, 4.0), planned(2, 3600.0)]
    bodies = Bodies(prompts, plan, time.monotonic())
    making = asyncio.create_task(bodies.keep_ahead())
    await turns(50)
    assert prompts.made == [0, 1]
    assert await bodies.take(plan[1]) == body(plan[1], HERE)
    assert prompts.made == [0, 1]
    making.cancel()


async def test_a_late_body_is_made_at_once_and_only_once() -> None:
    prompts = Counted()
    plan = [planned(0), planned(1)]
    bodies = Bodies(prompts, plan, time.monotonic())
    assert await bodies.take(plan[0]) == body(plan[0], HERE)
    await bodies.keep_ahead()
    assert prompts.made == [0, 1]
    assert await bodies.take(plan[1]) == body(plan[1], HERE)


async def test_bodies_that_wait_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtests.client.prompts.READY_BYTES", 300)
    prompts = Counted()
    plan = [planned(index, 0.001 * index) for index in range(10)]  # 230 bytes each.
    bodies = Bodies(prompts, plan, time.monotonic())
    making = asyncio.create_task(bodies.keep_ahead())
    await turns(100)
    assert prompts.made == [0, 1]
    for one in plan:
        await bodies.take(one)
        await turns(20)
    assert prompts.made == list(range(10))
    await making
