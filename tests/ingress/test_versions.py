"""The two versions of a model at an ingress replica: who gets which, rescue, copies, and counts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from math import sqrt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.api.body_memory import BodyMemory
from serve_app.api.engine_client import EngineReply, EngineRequest, Traffic
from serve_app.api.engine_response import EngineResponse
from serve_app.api.errors import ApiError
from serve_app.ingress.versions import Side, Versions, VersionShares, fraction
from serve_app.settings.knobs import CanaryRules, Knobs
from serve_app.settings.model_names import Adapter
from serve_app.wire.data_plane import TokenCounts
from serve_app.wire.version_documents import forget_counts, forget_share, put_share, read_counts
from serve_app.wire.versions import Share, in_force
from tests.ingress.cold_model import of_lane
from tests.ingress.fakes import request
from tests.ingress.fleet import DIED, DONE, FIRST, KILLED, WHOLE, CountingEngine, Fleet, without_comments
from tests.stub_engine import StubEngine, failing, frames, stalled
from tests.stub_kv import StubKv
from tests.timing import until

START = Share.by_settings(0.0, 0.0, "b on CPU")
OLD, NEW = EngineReply(200, b'{"by":"old"}'), EngineReply(200, b'{"by":"new"}')


def share(part: float, shadow: float = 0.0) -> Share:
    return Share(part, shadow, START.start)


class Model:
    """A model with an old and a new version, and the engines that answer for them."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.old = Fleet(stack)
        self.new = Fleet(stack, is_alone=lambda: self.versions.alone)
        self.rules = CanaryRules()
        self.versions = Versions(
            Side("tide", self.old.client, Traffic()),
            Side("tide@new", self.new.client, Traffic()),
            START,
            lambda: Knobs(canary=self.rules),
        )

    async def start(self, old: Any = OLD, new: Any = NEW) -> tuple[StubEngine, StubEngine]:
        engines = StubEngine(old), StubEngine(new)
        for engine in engines:
            engine.counts = TokenCounts(5, 4)
        if old is not None:
            await self.old.start(engines[0])
        if new is not None:
            await self.new.start(engines[1])
        return engines

    async def ask(self, asked: EngineRequest | None = None) -> bytes:
        """Return the body that a client gets."""
        sent = bytearray()

        async def send(message: dict[str, Any]) -> None:
            sent.extend(message.get("body", b""))

        async def receive() -> dict[str, Any]:
            await asyncio.Event().wait()
            raise AssertionError

        response = EngineResponse(self.versions, asked or request(), self.versions)
        await response({"type": "http"}, receive, send)  # type: ignore[arg-type]
        return bytes(sent)

    @property
    def counts(self) -> tuple[dict[str, int], dict[str, int]]:
        old, new = (self.versions.counts[name] for name in ("tide", "tide@new"))
        kept = ("requests", "errors", "answers", "rescued", "copies")
        return tuple({name: each[name] for name in kept if each[name]} for each in (old, new))  # type: ignore[return-value]


@pytest.fixture
async def model() -> AsyncIterator[Model]:
    async with AsyncExitStack() as stack:
        yield Model(stack)


def conversations(number: int) -> list[str]:
    return [f"user-{each}" for each in range(number)]


@pytest.mark.parametrize("part", [0.01, 0.05, 0.25, 0.5])
def test_shares_hold_within_two_standard_errors(part: float) -> None:
    names = conversations(10_000)

    given_new = sum(fraction("tide@new", name) < part for name in names)

    assert abs(given_new / len(names) - part) <= 2 * sqrt(part * (1 - part) / len(names))


@given(st.text(), st.floats(0, 1), st.floats(0, 1))
def test_larger_share_keeps_every_conversation(name: str, first: float, second: float) -> None:
    small, large = sorted((first, second))
    place = fraction("tide@new", name)

    assert 0.0 <= place < 1.0
    assert place >= small or place < large


async def test_assignment_ignores_replicas_and_ingresses() -> None:
    async with AsyncExitStack() as stack:
        models = [Model(stack), Model(stack)]
        for each in models:
            await each.start()
            each.versions.apply(share(0.25))
        for _ in range(3):
            await models[1].new.start(StubEngine(NEW))
            await models[1].old.start(StubEngine(OLD))

        answers = [
            [await each.ask(request(conversation=name)) for name in conversations(40)] for each in models
        ]

    assert answers[0] == answers[1]
    assert {OLD.body, NEW.body} == set(answers[0])


async def test_requests_of_a_conversation_stay_together(model: Model) -> None:
    await model.start()
    model.versions.apply(share(0.5))

    for name in conversations(6):
        answers = {await model.ask(request(conversation=name)) for _ in range(4)}
        assert len(answers) == 1


async def test_the_client_sees_the_name_that_it_asked_for(model: Model) -> None:
    _, new = await model.start()
    model.versions.apply(share(1.0))

    await model.ask(request(model="tide"))

    assert new.requests[0].message.alias == "tide"


async def test_a_version_without_replicas_gets_nothing(model: Model) -> None:
    await model.start(new=None)
    model.versions.apply(share(0.99))

    assert {await model.ask(request(conversation=name)) for name in conversations(20)} == {OLD.body}


async def test_a_promoted_version_alone_queues_like_a_model(model: Model) -> None:
    model.versions.apply(share(1.0))
    waiting = asyncio.create_task(model.ask(request(conversation="a")))
    await model.new.handle.asked.wait()
    await model.new.start(StubEngine(NEW))

    assert await waiting == NEW.body


async def test_a_version_that_fails_beside_no_old_replica_has_one_started(model: Model) -> None:
    await model.start(old=None, new=EngineReply(500, b"{}"))
    model.versions.apply(share(0.999))
    waiting = asyncio.create_task(model.ask(request(conversation="a")))
    await model.old.handle.asked.wait()
    await model.old.start(StubEngine(OLD))

    assert await waiting == OLD.body


@pytest.mark.parametrize(
    "failure",
    [
        EngineReply(400, b"{}"),
        EngineReply(500, b"{}"),
        ApiError(503, "no", code="engine_error"),
        DIED,
        failing(OSError("killed")),
    ],
    ids=["400", "500", "503", "died", "lost"],
)
async def test_a_failure_before_the_first_byte_is_rescued(model: Model, failure: Any) -> None:
    await model.start(new=failure)
    model.versions.apply(share(0.999))

    assert await model.ask(request(conversation="a")) == OLD.body
    assert model.counts == ({}, {"requests": 1, "errors": 1, "rescued": 1})


async def test_a_request_that_both_versions_refuse_counts_for_neither(model: Model) -> None:
    refused = ApiError(400, "no such field")
    reply = EngineReply(400, refused.body())
    old, new = await model.start(old=reply, new=reply)
    model.versions.apply(share(0.999))

    assert b"no such field" in await model.ask(request(conversation="a"))
    assert (len(old.requests), len(new.requests)) == (1, 1)
    assert model.counts == ({}, {})


async def test_a_full_version_is_no_failing_version(model: Model) -> None:
    await model.start(new=ApiError(429, "full", code="queue_full"))
    model.versions.apply(share(0.999))

    assert await model.ask(request(conversation="a")) == OLD.body
    assert model.counts == ({}, {"rescued": 1})


async def test_a_stream_never_continues_on_the_other_version(model: Model) -> None:
    async def cut() -> AsyncIterator[bytes]:
        yield FIRST
        raise OSError("killed")

    old, _ = await model.start(old=frames(FIRST, DONE), new=cut)
    model.versions.apply(share(0.999))

    text = await model.ask(request(conversation="a", wants_stream=True))

    assert b'"error"' in text
    assert not old.requests


async def test_broken_streams_count_at_once_although_they_continue(model: Model) -> None:
    old, _ = await model.start(new=None)
    engines = [CountingEngine(until=5, dies=KILLED), CountingEngine(until=10)]
    for engine in engines:
        await model.new.start(engine)
    model.versions.apply(share(0.999))
    asked = asyncio.create_task(model.ask(request(conversation="a", wants_stream=True)))
    await engines[1].reached.wait()
    broken = model.counts
    engines[1].go_on()

    assert without_comments(await asked) == (WHOLE, 1)
    assert not old.requests
    assert broken == ({}, {"requests": 1, "errors": 1})
    assert model.counts == ({}, {"requests": 1, "errors": 1, "answers": 1})


async def test_adapters_stay_with_the_weights_that_they_were_made_for(model: Model) -> None:
    _, new = await model.start()
    model.versions.memory = BodyMemory(1 << 20)
    model.versions.apply(share(0.999, 1.0))
    asked = request(conversation="a", adapter=Adapter("style", "/adapters/style"))
    assert await model.ask(replace(asked)) == NEW.body
    model.versions.same_weights = False

    assert await model.ask(replace(asked)) == OLD.body
    assert len(new.requests) == 1


async def test_a_busy_version_leaves_conversations_to_the_old(model: Model) -> None:
    await model.start()
    for _ in range(2):
        await model.old.start(StubEngine(OLD))
    model.versions.apply(share(1.0))
    model.new.known.places.update({"other": 16})  # twice the mean of 4 replicas, and 8

    assert await model.ask() == NEW.body
    model.new.known.places.update({"other": 1})
    assert await model.ask() == OLD.body
    model.old.lose()
    assert await model.ask() == NEW.body


async def test_both_versions_are_counted_only_while_compared(model: Model) -> None:
    await model.start()
    await model.ask()
    assert model.counts == ({}, {})
    model.versions.apply(share(0.5))
    for name in conversations(20):
        await model.ask(request(conversation=name))

    old, new = model.counts
    assert old["requests"] + new["requests"] == 20
    assert old["answers"] == old["requests"]
    assert new["answers"] == new["requests"]


@pytest.mark.parametrize(("part", "olds", "timed"), [(0.5, 1, True), (0.5, 3, False), (0.2, 3, True)])
async def test_latencies_count_only_under_about_equal_load(
    model: Model, part: float, olds: int, timed: bool
) -> None:
    await model.start()
    for _ in range(olds - 1):
        await model.old.start(StubEngine(OLD))
    model.versions.apply(share(part))
    for name in conversations(20):
        await model.ask(request(conversation=name))

    for counts in model.versions.counts.values():
        assert counts["requests"]
        assert any(name.startswith("ttft:") for name in counts) == timed


async def test_a_later_comparison_begins_with_no_counts(model: Model) -> None:
    await model.start()
    model.versions.apply(share(0.5))
    await model.ask()
    model.versions.apply(share(0.0))
    model.versions.apply(share(0.5))

    assert model.counts == ({}, {})


@pytest.mark.parametrize("streams", ["end", "finish"])
async def test_aborted_version_ends_its_streams_by_the_setting(model: Model, streams: str) -> None:
    await model.start(new=stalled(FIRST))
    model.rules = CanaryRules(streams=streams)
    model.versions.apply(share(0.999))
    asked = request(conversation="a", wants_stream=True)
    model.versions.opened(asked)

    async with model.versions.call(asked) as reply:
        assert reply.stream is not None
        assert await anext(reply.stream) == FIRST
        model.versions.apply(share(0.0))
        if streams == "end":
            assert b'"error"' in b"".join([part async for part in reply.stream])
    assert len(model.new.replicas) == 1


# Copies.


async def copies_end(model: Model) -> None:
    while asyncio.all_tasks() - {asyncio.current_task()} and not model.counts[1].get("copies"):
        await asyncio.sleep(0)


async def test_copies_go_to_the_lane_background_of_their_own_key(model: Model) -> None:
    _, new = await model.start()
    model.versions.memory = BodyMemory(1 << 20)
    model.versions.apply(share(0.0, 1.0))

    assert await model.ask(request(conversation="a")) == OLD.body
    await copies_end(model)

    (copy,) = new.requests
    assert (copy.message.key, copy.message.lane) == ("shadow", "background")
    assert model.counts[1] == {"requests": 1, "answers": 1, "copies": 1}
    assert model.versions.memory.used_bytes == 0


async def test_a_refused_copy_counts_as_a_failure(model: Model) -> None:
    await model.start(new=EngineReply(400, b"{}"))
    model.versions.memory = BodyMemory(1 << 20)
    model.versions.apply(share(0.0, 1.0))
    await model.ask(request(conversation="a"))
    await copies_end(model)

    assert model.counts[1] == {"requests": 1, "errors": 1, "copies": 1}


async def test_refused_requests_get_no_copies(model: Model) -> None:
    _, new = await model.start(old=EngineReply(400, b"{}"))
    model.versions.memory = BodyMemory(1 << 20)
    model.versions.apply(share(0.0, 1.0))

    assert await model.ask()
    assert not new.requests


async def test_copies_wait_for_nothing_and_nobody_waits_for_them(model: Model) -> None:
    _, new = await model.start(new=stalled(FIRST))
    model.versions.memory = BodyMemory(1 << 20)
    model.versions.apply(share(0.0, 1.0))

    answers = [await model.ask(request(wants_stream=True)) for _ in range(40)]
    for _ in range(20):
        await asyncio.sleep(0)

    assert answers == [OLD.body] * 40
    assert len(new.requests) <= 16


async def test_copies_are_dropped_first_when_memory_is_short(model: Model) -> None:
    _, new = await model.start()
    model.versions.memory = BodyMemory(1 << 20)
    model.versions.memory.used_bytes = 1 << 19
    model.versions.apply(share(0.0, 1.0))

    assert await model.ask() == OLD.body
    assert not new.requests


async def test_background_requests_get_no_copies(model: Model) -> None:
    _, new = await model.start()
    model.versions.memory = BodyMemory(1 << 20)
    model.versions.apply(share(0.0, 1.0))

    assert await model.ask(of_lane("background")) == OLD.body
    assert not new.requests


# Shares.


async def test_abort_is_in_force_at_once_and_soon_elsewhere(kv: StubKv) -> None:
    async with AsyncExitStack() as stack:
        models = [Model(stack), Model(stack)]
        here, there = (VersionShares("shop", f"i{n}", [each.versions]) for n, each in enumerate(models))
        following = asyncio.create_task(there.run())
        await here.set("tide", "new", 0.5, None, "an operator")
        assert models[0].versions.share.share == 0.5
        async with asyncio.timeout(1.0):
            while models[1].versions.share.share != 0.5:
                await asyncio.sleep(0.01)
        await here.set("tide", None, 0.0, None, "an operator")
        async with asyncio.timeout(1.0):
            while models[1].versions.share.share != 0.0:
                await asyncio.sleep(0.01)
        following.cancel()

    assert models[0].versions.share.why == "set by an operator"


async def test_a_removed_share_stays_at_replicas_that_still_serve(kv: StubKv, model: Model) -> None:
    following = asyncio.create_task(VersionShares("shop", "i", [model.versions]).run())
    put_share("shop", "tide@new", share(0.5))
    await until(lambda: model.versions.share.share)
    forget_share("shop", "tide@new")
    for _ in range(2):  # the counts are written after a read of the shares
        forget_counts("shop", "i")
        await until(lambda: read_counts("shop"))
    following.cancel()

    assert model.versions.share.share == 0.5


@pytest.mark.parametrize(
    ("asked", "version", "problem"),
    [("other", None, "model = 'other': has no version"), ("tide", "b", "version = 'b': must be 'new'")],
)
async def test_shares_of_unknown_versions_are_refused(
    kv: StubKv, model: Model, asked: str, version: str | None, problem: str
) -> None:
    with pytest.raises(ApiError, match=problem) as refused:
        await VersionShares("shop", "i", [model.versions]).set(asked, version, 0.5, None, "?")

    assert refused.value.status == 400


def test_a_stored_share_counts_until_the_settings_change() -> None:
    stored, changed = share(0.5), Share.by_settings(0.05, 0.0, "c on CPU")

    assert in_force(START, stored) is stored
    assert in_force(changed, stored) is changed
    assert in_force(changed, None) is changed
