"""The work of a scaling decision as replicas and models grow, counted in calls.

Ray Serve calls the policy in the event loop of its controller, so each millisecond delays every deployment of
the cluster. Counts do not depend on the machine. docs/measurements.md has the times that were measured.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

from serve_app.settings.knobs import Knobs
from serve_app.settings.tree import INGRESS
from tests.policy.fake_application import Clock, FakeApplication

WARM_UP_TURNS = 12
FEW, MANY = 20, 200
CALLS_PER_REPLICA = 20
"""Python and C calls of our code for one more replica in a turn: 11 when this bound was set."""
BYTES_PER_REPLICA = 60
"""Of the latest decision record and the status document as JSON, for one more replica."""


def busy(clock: Clock, replicas: int, models: int = 1) -> FakeApplication:
    """An application whose replicas report load, and whose policy has seen a dozen turns of it."""
    names = [f"model-{number}" for number in range(models)]
    knobs = Knobs(min_replicas=replicas, max_replicas=10_000)
    targets = {**dict.fromkeys(names, replicas), INGRESS: max(1, replicas // 50)}
    app = FakeApplication(clock, dict.fromkeys(names, knobs), targets=targets)
    for _ in range(WARM_UP_TURNS):
        report(app, names, replicas)
        app.tick()
    report(app, names, replicas)
    return app


def report(app: FakeApplication, models: list[str], replicas: int) -> None:
    """Have every replica report a second of work."""
    passed = app.clock.now % 10_000
    arrivals = {"arrivals_total": 2.0 * replicas * passed, "arrived_bytes_total": 4e3 * replicas * passed}
    app.reports(ongoing=30.0, **dict.fromkeys(models, arrivals))
    for model in models:
        for number in range(replicas):
            app.engine(
                model, number, running_requests=4, running_tokens=4000, ongoing_requests=5,
                prompt_tokens_total=2e3 * passed, finished_requests_total=2 * passed,
                finished_prompt_tokens_total=2e3 * passed, finished_generation_tokens_total=256 * passed,
                steps=60, step_s=0.014, step_batch=4, step_prefill_tokens=50, step_kv_tokens=4e3,
                ttft_count=60, ttft_queue_p95_s=0.05, ttft_prefill_p95_s=0.09, itl_count=7000, itl_p95_s=0.02,
            )  # fmt: skip


def calls(work: Callable[[], Any]) -> int:
    """The calls that our own code makes, and of our own code, while `work` runs."""
    count = 0

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count
        if event in ("call", "c_call") and "/serve_app/" in frame.f_code.co_filename:
            count += 1

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_calls_per_replica_do_not_grow_with_the_fleet(clock: Clock) -> None:
    few, many = (calls(busy(clock, replicas).tick) for replicas in (FEW, MANY))

    per_replica = (many - few) / (MANY - FEW)
    assert 0 < per_replica <= CALLS_PER_REPLICA
    assert many <= few * MANY / FEW, "a turn costs more than in proportion to the replicas"


def test_calls_per_model_do_not_grow_with_models(clock: Clock) -> None:
    one, eight = (calls(busy(clock, FEW, models).tick) for models in (1, 8))

    assert 0 < eight <= 8 * one


def test_a_turn_without_a_decision_reads_no_report(clock: Clock) -> None:
    counts = []
    for replicas in (FEW, MANY):
        app = busy(clock, replicas)
        app.tick()
        # The policy decides every half second, and Ray asks it ten times a second.
        counts.append(calls(partial(app.tick, 0.1)))

    few, many = counts
    assert few == many < 20


def test_documents_grow_by_a_bounded_size_per_replica(clock: Clock) -> None:
    sizes = []
    for replicas in (FEW, MANY):
        app = busy(clock, replicas)
        app.tick()
        outbox = app.mailbox.outbox
        record = app.records("model-0")[-1]
        assert record["signals"]["running_requests"] == 5 * replicas
        sizes.append(len(json.dumps([record, outbox.status])))

    few, many = sizes
    assert (many - few) / (MANY - FEW) <= BYTES_PER_REPLICA
