"""Random fleets: nothing is lost, nothing counted twice, and no limit exceeded, at any time."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from replay.fleet.fleet import Fleet
from replay.fleet.layout import BACKGROUND, FREE, NONE, READY, REPLICA, REQUEST, STARTING
from serve_app.settings.caller import LANES
from tests.replay.fleet.build import chunk, fleet, profile


def queue(following: list[int], first: int) -> list[int]:
    """The requests linked from `first` on."""
    linked = []
    while first != NONE:
        linked.append(first)
        first = following[first]
    return linked


def check(made: Fleet) -> None:
    """What has to be true of a fleet's memory whenever somebody looks."""
    memory, totals, rules = made.memory, made.memory.totals[0], made.memory.rules[0]
    requests = memory.requests
    following = requests["next"].tolist()  # as lists: NumPy takes ten times as long for one element
    held = queue(following, int(totals["held_head"]))
    assert len(held) == totals["held"]
    assert totals["held_bytes"] == pytest.approx(requests["body"][held].sum(), abs=1e-6)
    places = list(zip(requests["lane"][held], requests["arrived"][held], strict=True))
    assert places == sorted(places)
    background = queue(following, int(totals["background_head"]))
    assert len(background) == totals["background_held"]
    assert totals["background_held_bytes"] == pytest.approx(requests["body"][background].sum(), abs=1e-6)
    everybody = held + background
    for slot, values in enumerate(memory.replicas.tolist()):
        replica = dict(zip(REPLICA.names, values, strict=True))
        waiting = queue(following, replica["head"])
        batch = memory.batch[slot, : replica["batch_size"]].tolist()
        here = waiting + batch
        everybody += here
        assert len(waiting) == replica["waiting"]
        lanes = requests["lane"][here]
        assert len(here) - sum(lanes == BACKGROUND) == replica["in_flight"] <= rules["most_in_flight"]
        assert sum(lanes == BACKGROUND) == replica["background"] <= rules["room"]
        assert lanes[: len(waiting)].tolist() == sorted(lanes[: len(waiting)])
        in_batch = lanes[len(waiting) :] == BACKGROUND
        assert in_batch.tolist() == sorted(in_batch)
        assert sum(in_batch) == replica["background_batch"]
        assert len(batch) <= rules["max_num_seqs"]
        if replica["status"] in (FREE, STARTING):
            assert not here
        assert math.isfinite(replica["step_end"]) == bool(here)
        check_tokens(memory, replica, waiting, batch)
    assert (memory.recent >= 0).all()
    assert np.array_equal(memory.recent[:, :, :-1].sum(axis=2), memory.recent[:, :, -1])
    free = queue(following, int(totals["free"]))
    assert sorted(everybody + free) == list(range(len(requests)))
    assert len(everybody) == totals["open"]
    of_background = totals["background_arrivals"] - totals["background_refused"]
    of_background -= totals["background_finished"]
    assert of_background == sum(requests["lane"][everybody] == BACKGROUND)
    open_requests = totals["open"] - of_background
    assert totals["arrivals"] == totals["finished"] + totals["rejected"] + open_requests
    assert totals["admitted"] == totals["finished"] + open_requests - totals["held"]
    windows = memory.windows
    assert windows["requests"].sum() == totals["arrivals"]
    assert windows["rejected"].sum() == totals["rejected"]
    assert windows["background_arrivals"].sum() == totals["background_arrivals"]
    assert windows["background_finished"].sum() == totals["background_finished"]
    assert memory.window_ttft.sum() == memory.histograms[:2].sum() == totals["first_tokens"]
    assert memory.window_itl.sum() == memory.histograms[2].sum() == totals["itl_count"]
    assert memory.histograms[3].sum() == totals["finished"]
    if held:
        room = [r for r in memory.replicas if r["status"] == READY and r["in_flight"] < rules["room"]]
        assert not room


def check_tokens(memory: Any, replica: dict[str, Any], waiting: list[int], batch: list[int]) -> None:
    """Tokens by request against the replica's sums."""
    used = context = without = again = pending = decoding = 0
    of = {q: dict(zip(REQUEST.names, memory.requests[q].item(), strict=True)) for q in waiting + batch}
    for q in batch:
        request = of[q]
        if request["todo"]:
            assert 0 <= request["scheduled"] <= request["todo"] - request["computed"]
            used += request["computed"] + request["scheduled"]
            continue
        decoding += 1
        tokens = request["output"] - (request["ends"] - replica["taken"])
        assert 1 <= tokens < request["output"]
        assert replica["next_end"] <= request["ends"]
        context += request["prompt"] + tokens - 1
    for request in [of[q] for q in waiting] + [of[q] for q in batch if of[q]["todo"]]:
        if request["generated"]:
            again += request["prompt"] + request["generated"]
        else:
            without += request["prompt"]
            pending += request["pending"]
    assert replica["context"] == context
    # Who decodes has the token of the step under way in there too, except those that pause.
    decoding_now = min(decoding, replica["step_decodes"])
    assert decoding - decoding_now <= replica["paused"]
    assert replica["kv_used"] == used + context + decoding_now <= memory.rules["kv_cache_tokens"][0]
    assert replica["prefilling"] == len(batch) - decoding
    assert replica["waiting_tokens"] == without
    assert replica["recompute_tokens"] == again
    assert replica["pending_tokens"] == pending


@dataclass(slots=True)
class Bill:
    """How long each replica has existed, by its number."""

    began: dict[int, float] = field(default_factory=dict)
    seconds: float = 0.0

    def look(self, made: Fleet) -> None:
        existing = {start.number: start.began_at for start in made.starting.values()}
        existing |= {number: self.began.get(number, made.now) for number in made.names.values()}
        for number in set(self.began) - set(existing):
            # It drained, and the last to leave it left at some time up to now.
            self.seconds += made.now - self.began.pop(number)
        self.began |= existing


CASES = {
    "roomy": {},
    "small batch": {"max_num_seqs": 2},
    "small cache": {"kv_cache_tokens": 1800, "max_num_batched_tokens": 300},
    "small steps": {"max_num_batched_tokens": 64},
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("case", CASES)
def test_nothing_is_lost_and_no_limit_exceeded(case: str, seed: int) -> None:
    draw = np.random.default_rng(seed)
    made = fleet(
        seed,
        of=profile(**CASES[case]),
        seed=seed,
        block_tokens=100 * (seed % 2),
        routing="two-choices" if seed == 2 else "tokens",
        cold_start_s=(0.0, 8.0),
        start_failures=0.2,
        capacity=6 if seed else None,
        max_held=40,
        max_ongoing_requests=20,
        body_noise=0.2,
        drain_move_after_s=0.0 if seed else None,
    )
    most = 0
    while made.now < 60.0:
        until = made.now + float(draw.exponential(0.5))
        requests = [
            (float(at), int(draw.integers(1, 1600)), int(draw.choice([1, 2, 10, 90])))
            for at in np.sort(draw.uniform(made.now, until, draw.poisson(draw.choice([0, 1, 6]))))
        ]
        if requests:
            blocks = (
                [[int(b) for b in draw.integers(0, 3, r[1] // 100)] for r in requests] if seed % 2 else ()
            )
            lanes = draw.choice(LANES, len(requests)).tolist() if seed == 3 else ()
            made.take(chunk(*requests, blocks=blocks, lanes=lanes), 0, until)
        made.advance(until)
        check(made)
        made.settle()
        if made.memory.totals["background_held"][0] and not made.memory.totals["held"][0]:
            replicas = made.memory.replicas[made.ready_slots]
            assert (replicas["in_flight"] + replicas["background"] >= made.memory.rules["room"]).all()
        if draw.random() < 0.3:
            made.set_target(int(draw.integers(0, 9)))
        check(made)
        most = max(most, len(made.names) + len(made.starting))
    made.set_target(4)
    while made.open_requests:
        made.advance(made.now + 0.5)
        made.settle()
        made.set_target(4)
    check(made)
    totals = made.memory.totals[0]

    assert made.now < 300.0
    assert totals["finished"] + totals["rejected"] == totals["arrivals"] > 60
    # Requests of the lane `background` are preempted also for want of a place.
    assert (totals["preemptions"] > 0) == (case == "small cache" or seed == 3)
    assert (totals["background_finished"] > 30) == (seed == 3)
    assert most <= made.peak <= (made.conditions.capacity or 9 + 8)
    assert made.failed_starts > 0
    if case != "small batch":  # where nobody has room
        assert (totals["moves"] > 0) == (seed > 0)


@pytest.mark.parametrize("seed", range(3))
def test_the_bill_is_the_time_replicas_have_existed(seed: int) -> None:
    draw = np.random.default_rng(seed)
    made = fleet(2, of=profile(gpus=2), seed=seed, cold_start_s=(0.0, 8.0), start_failures=0.2, capacity=6)
    bill = Bill()
    late = 0.0
    while made.now < 120.0:
        bill.look(made)
        until = made.now + 0.02
        if draw.random() < 0.2:
            made.take(chunk((made.now + 0.01, int(draw.integers(1, 900)), 20)), 0, until)
        made.advance(until)
        draining = made.draining
        made.settle()
        late += 0.02 * (draining - made.draining)
        if draw.random() < 0.01:
            made.set_target(int(draw.integers(0, 9)))
    bill.look(made)
    made.end()
    bill.look(made)
    spent = made.gpu_seconds()

    # A drain is seen to have ended 0.02 s late at most.
    assert bill.seconds - late <= spent.total / 2 <= bill.seconds + 1e-6
    assert late < 0.002 * bill.seconds
    assert min(spent.serving, spent.idle, spent.warming, spent.draining) > 0
