"""Admission to a model: reservations at once, the queue for a cold start, and refusals."""

import asyncio
from typing import Any

import pytest
from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import DeploymentUnavailableError

from serve_app.api.engine_client import GPU_OPERATIONS, OPERATIONS, SPEECH_OPERATIONS, EngineRequest
from serve_app.api.errors import ApiError
from serve_app.ingress.admission import release_limit
from serve_app.ingress.cold_start_progress import ColdStartProgress
from serve_app.ingress.prefix_index import MOST_PROMPT_TOKENS
from serve_app.settings.caller import Lane
from serve_app.wire.data_plane import TokenCounts
from tests.ingress.cold_model import LIMIT, PLACES, SETTINGS, ColdModel, of_lane, settle
from tests.ingress.fakes import FakeHandle, request

UNAVAILABLE = DeploymentUnavailableError(DeploymentID("Engine-tide", "app"))


@pytest.mark.parametrize(
    ("max_num_seqs", "max_ongoing_requests", "places"),
    [(1, 1000, 2), (2, 1000, 3), (64, 1000, 72), (256, 1000, 288), (1000, 1000, 1000), (64, 24, 24)],
)
def test_release_limit_is_nine_eighths_of_the_batch(
    max_num_seqs: int, max_ongoing_requests: int, places: int
) -> None:
    changed = {"max_num_seqs": max_num_seqs, "max_ongoing_requests": max_ongoing_requests}

    assert release_limit(SETTINGS.model_copy(update=changed)) == places


# At once.


async def test_a_request_with_a_replica_at_hand_never_yields() -> None:
    model = ColdModel()
    await model.up("a")
    tasks = asyncio.all_tasks()
    coroutine = model.admission.take(request())

    with pytest.raises(StopIteration) as done:
        coroutine.send(None)  # the first step is the last: it never yields to the event loop

    assert done.value.value.replica is model.listed[0]
    assert (model.listed[0].in_flight, model.handle.chosen, model.progress.running) == (1, 0, False)
    assert asyncio.all_tasks() == tasks


@pytest.mark.parametrize("grouped", [True, False])
async def test_only_streams_join_prefill_groups_and_none_without_the_knob(grouped: bool) -> None:
    model = ColdModel(prefill_groups=grouped)
    await model.up("a")

    taken = [await model.admission.take(request(wants_stream=stream)) for stream in (True, False)]

    assert [reservation.group >= 0 for reservation in taken] == [grouped, False]


@pytest.mark.parametrize(
    ("asked", "max_model_len", "tokens"),
    [
        *(
            # 80 bytes of audio count as one of text.
            (request(operation=each, body=b"x" * 403), None, 1 if each in SPEECH_OPERATIONS else 100)
            for each in sorted(GPU_OPERATIONS)
        ),
        *((request(operation=each), None, 0) for each in OPERATIONS if each not in GPU_OPERATIONS),
        (EngineRequest("rerank", b"x" * 400, "r-1", repeated_bytes=3600), None, 1000),  # once a document
        (request(body=b"x" * (1 << 20)), 64, 64),
        (request(body=b"x" * (1 << 20)), None, MOST_PROMPT_TOKENS),
    ],
)
async def test_a_prompt_is_estimated_from_its_bytes(
    asked: EngineRequest, max_model_len: int | None, tokens: int
) -> None:
    model = ColdModel(settings=SETTINGS.model_copy(update={"max_model_len": max_model_len}))
    await model.up("a")

    assert (await model.admission.take(asked)).pending_prompt_tokens == tokens


# The queue.


async def test_a_burst_wakes_ray_once_and_leaves_together() -> None:
    model = ColdModel()
    await model.ask(" ".join(f"s{number}" for number in range(9)))
    assert (model.handle.chosen, model.progress.running) == (1, True)

    await model.up(*"abc")

    assert model.in_flight == dict.fromkeys("abc", PLACES)
    assert (model.handle.chosen, model.cold_starts, model.progress.running) == (1, 1, False)


async def test_vanished_replicas_are_asked_for_again() -> None:
    names = iter("ab")
    model = ColdModel(FakeHandle(on_choose=lambda: model.list(next(names))))
    await asyncio.gather(*(model.ask(name) for name in ("s1", "s2", "s3", "s4")))
    assert model.in_flight == {"a": PLACES}

    await model.up()
    await settle()

    assert (model.in_flight, model.handle.chosen) == ({"a": PLACES, "b": 1}, 2)


async def test_background_request_that_lost_its_replica_blocks_nobody() -> None:
    model = ColdModel()
    await model.ask("s1 s2 s3 s4")
    await model.ask("b1", "background", retry=True)
    await model.up("x")
    assert model.order == ["b1", "s1", "s2", "s3"]

    await model.ask("b2", "background", retry=True)
    await model.end("s1")

    assert model.order[4:] == ["s4"]
    await model.end("s2 s3")
    assert model.order[5:] == ["b2"]


async def test_cold_start_shares_places_between_keys() -> None:
    model = ColdModel()
    await model.ask("a1 a2 a3 a4 a5 b1 b2")
    await model.up("x", "y")

    assert model.order == ["a1", "b1", "a2", "b2", "a3", "a4"]


async def test_cold_start_releases_lanes_in_order() -> None:
    model = ColdModel(standard_share=0)
    await model.ask("b1", "background")
    await model.ask("s1 s2", "standard")
    await model.ask("i1 i2", "interactive")
    await model.ask("r1", "standard", retry=True)
    await model.up("a")
    await model.end("r1 i1 i2 s1 s2")

    assert model.order == ["r1", "i1", "i2", "s1", "s2", "b1"]


async def test_true_tokens_replace_the_estimate_of_a_key() -> None:
    """All prompts have 100 tokens. The answers of `a` have 1,000, and the prompts of `b` are cached."""
    model = ColdModel()
    await model.ask("a1 a2 b1 b2 a3 a4 a5 b3 b4 b5")
    await model.up("x")
    assert model.order == ["a1", "b1", "a2"]

    for key, cached, output in (("a", 0, 1000), ("b", 99, 1)):
        counts = TokenCounts(cached, 100, 100, output)
        model.admission.settle(of_lane("standard", key, charged_tokens=100, counts=counts))
    await model.end("a1 b1 a2 b2")

    assert model.order[3:] == ["b2", "b3", "b4", "b5"]


async def test_background_in_flight_keeps_no_stream_from_its_replica() -> None:
    """Its prompts delay nobody for more than a step. But of two equal replicas, the emptier one is picked."""
    model = ColdModel()
    await model.up("x", "y")
    await model.ask("b1 b2 b3", "background")
    assert model.in_flight == {"x": 2, "y": 1}

    await model.ask("s1 s2", "interactive")
    assert [model.taken[name].replica.replica_id for name in ("s1", "s2")] == ["y", "x"]


async def test_background_wakes_no_model() -> None:
    model = ColdModel()
    await model.ask("b1 b2", "background")

    assert (model.handle.chosen, model.cold_starts, model.admission.cold) == (0, 0, False)
    await model.ask("s1")
    assert (model.handle.chosen, model.cold_starts, model.admission.cold) == (1, 1, True)
    await model.up("x")
    assert (model.order, model.admission.cold) == (["s1", "b1", "b2"], False)


# Time in the queue.


@pytest.mark.parametrize("lane", ["standard", "background"])
async def test_a_pause_within_a_stream_is_no_queue_time(lane: Lane) -> None:
    """A retry in the lane `background` waits for other lanes too."""
    model = ColdModel()
    asked = of_lane(lane)
    for wait_s, ttft_s in ((3.0, 3.5), (17.0, 3.5)):  # before its first token, and after a later loss
        taking = asyncio.create_task(model.admission.take(asked, retry=asked.ttft_s is not None))
        await settle()
        model.now += wait_s
        await model.up("a")
        model.replicas.release(await taking)
        asked.ttft_s = ttft_s
        await model.up()

    assert asked.queued_s == 3.0


@pytest.mark.parametrize(
    ("lost", "gone_s", "zero", "lane", "retry", "waits"),
    [
        (True, 0.0, False, "standard", False, (0.0, 9.0)),
        (True, 61.0, False, "standard", False, (9.0, 0.0)),  # the loss was too long ago
        (True, 9.0, True, "standard", False, (9.0, 0.0)),  # the policy wanted no replica meanwhile
        (False, 0.0, False, "standard", False, (9.0, 0.0)),  # it was drained
        (False, 0.0, False, "standard", True, (0.0, 9.0)),
        (False, 0.0, False, "background", True, (9.0, 0.0)),  # which waits for other lanes too
    ],
)
async def test_only_wait_without_a_loss_is_wait_for_a_cold_start(
    lost: bool, gone_s: float, zero: bool, lane: Lane, retry: bool, waits: tuple[float, float]
) -> None:
    model, asked = ColdModel(cold_wait_timeout_s=60.0), of_lane(lane)
    await model.up("a")
    (replica,) = model.listed
    if lost:
        model.replicas.keep_away(replica, "its engine has taken no step for 4 s")
    await model.up()
    model.replicas.keep_away(replica, "its data plane cannot be reached")  # as it drains
    model.now += gone_s

    await model.ask("s1", asked=asked, retry=retry)
    if zero:
        model.progress.on_requested()
    model.now += 9.0
    await model.up("b")

    assert (asked.queued_s, asked.lost_s) == waits


async def test_loss_is_over_once_another_replica_served() -> None:
    model, asked = ColdModel(), of_lane()
    await model.up("a")
    model.replicas.keep_away(model.listed[0], "it has sent no heartbeat for 2 s")
    await model.up("b")
    await model.up()

    await model.ask("s1", asked=asked)
    model.now += 9.0
    await model.up("c")

    assert (asked.queued_s, asked.lost_s) == (9.0, 0.0)


# Refusals.


def told(error: ApiError) -> tuple[int, str | None, str, str]:
    """Return status, code, message and Retry-After."""
    return error.status, error.code, error.message, error.headers["Retry-After"]


NEITHER = "Model 'tide': no replica can take the request yet, and this ingress replica already queues"


async def test_a_full_queue_refuses_until_the_eta() -> None:
    model = ColdModel(max_held_requests=2)
    model.progress.current = ColdStartProgress("imports", 41.2)
    await model.ask("b1 c1", "background")
    await model.ask("s1 t1")

    others = f"{NEITHER} 2 others (max_held_requests = 2)."
    assert told(await model.refusal()) == (429, "queue_full", others, "42")
    background = f"{NEITHER} 2 others of the lane background (max_held_requests = 2)."
    assert told(await model.refusal("background")) == (429, "queue_full", background, "42")
    await model.ask("r1", retry=True)
    assert model.queue.foreground == 3  # the bound is not for a request that lost its replica


@pytest.mark.parametrize(
    ("lane", "timeout_s", "knob", "phase"),
    [
        ("standard", 0.002, "cold_wait_timeout", "rollout_failed (no model)"),
        ("background", 0.003, "background_wait_timeout", "rollout_failed (no model)"),
        ("background", 0.003, "background_wait_timeout", "background"),
    ],
)
async def test_a_queued_request_is_refused_at_the_deadline_of_its_lane(
    lane: Lane, timeout_s: float, knob: str, phase: str
) -> None:
    model = ColdModel(cold_wait_timeout_s=0.002, background_wait_timeout_s=0.003)
    failed = ColdStartProgress("rollout_failed", None, "no model")
    model.progress.current = ColdStartProgress("busy", None) if phase == lane else failed
    refusal = asyncio.create_task(model.refusal(lane))
    await settle()
    model.now += 0.999 * timeout_s
    await settle()
    assert len(model.queue) == 1  # its deadline is counted from its arrival

    model.now += timeout_s
    message = (
        f"Model 'tide': no replica could take the request within {timeout_s} s "
        f"({knob}_s = {timeout_s}); phase: {phase}."
    )
    assert told(await refusal) == (503, knob, message, "30")
    await settle()
    assert (len(model.queue), model.handle.asking, model.progress.running) == (0, 0, False)


async def test_engines_that_cannot_start_fail_the_whole_queue() -> None:
    model = ColdModel(FakeHandle(refuses=UNAVAILABLE))
    await model.ask("s1 s2 s3")
    await asyncio.wait(model.tasks.values())

    refusal = (503, "model_unavailable", "Model 'tide': its engines cannot start; see /ready.", "30")
    assert [told(model.error_of(name)) for name in model.tasks] == [refusal] * 3
    assert told(await model.refusal()) == refusal
    assert len(model.queue) == 0


async def test_failed_rollout_ends_the_wait_of_requests_without_a_replica() -> None:
    model = ColdModel()
    await model.ask("s1 s2")
    await model.ask("b1", "background")

    model.progress.on_rollout_failed("the last rollout failed: no such setting")
    await settle()

    assert told(model.error_of("s1")) == told(model.error_of("s2"))
    assert told(model.error_of("s1"))[1:] == (
        "model_unavailable",
        "Model 'tide': no replica runs, and none can start before the next rollout, because the last rollout "
        "failed: no such setting",
        "30",
    )
    assert (len(model.queue), model.handle.asking, model.progress.running) == (1, 0, True)
    await model.up("a")  # by the next rollout
    assert model.order == ["b1"]


async def test_full_replicas_refuse_all_but_a_request_that_lost_its_replica() -> None:
    model = ColdModel()
    await model.up("a")
    await model.ask("s1 s2 s3 s4 s5")
    await model.ask("r1", retry=True)
    await model.ask("b1 b2 b3 b4", "background")

    message = (
        "Model 'tide': every replica already has 5 requests from this ingress replica "
        "(max_ongoing_requests = 5)."
    )
    assert told(await model.refusal()) == (429, "queue_full", message, "1")
    assert (model.queue.foreground, model.handle.chosen) == (1, 0)  # Ray has nothing to start
    model.progress.on_rollout_failed("the last rollout failed: no such setting")  # it refuses nothing here
    await model.end("s1")
    assert model.order[5:] == ["r1"]


@pytest.mark.parametrize(
    ("others", "order"), [("b1 b2 b3", "b1 b2 b3"), ("b1 c1 b2 d1 b3", "b1 c1 d1 b2 b3")]
)
async def test_full_replicas_keep_no_key_out(others: str, order: str) -> None:
    """One key has all places. Each other key gets the next places, up to its equal share."""
    model = ColdModel()
    await model.up("x")
    await model.ask("a1 a2 a3 a4 a5")
    assert "max_ongoing_requests = 5" in (await model.refusal("standard", "a")).message

    await model.ask(others, "interactive")
    await model.end("a1")
    for key in "ab":
        assert (await model.refusal("interactive", key)).code == "queue_full"
    await model.end(" ".join(["a2", "a3", "a4", "a5"][: len(others.split()) - 1]))

    assert model.order[5:] == order.split()
    assert (len(model.queue), model.in_flight, model.handle.chosen) == (0, {"x": LIMIT}, 0)


async def test_key_alone_may_use_all_places_again() -> None:
    model = ColdModel()
    await model.up("x")
    await model.ask("b1", "interactive")
    await model.end("b1")
    await model.ask("a1 a2 a3 a4 a5")

    assert model.in_flight == {"x": LIMIT}
    assert (await model.refusal("standard", "a")).code == "queue_full"


@pytest.mark.parametrize(
    ("lane", "knob"), [("background", 0.8 * 0.05), ("standard", 0.3), ("interactive", None)]
)
def test_call_brings_the_knob_of_its_lane(lane: Lane, knob: Any) -> None:
    model = ColdModel(itl_target_s=0.05, standard_share=0.3)

    assert model.admission.lane_knob(of_lane(lane)) == knob
