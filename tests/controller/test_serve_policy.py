"""The policy as Ray calls it: under Ray's own application state, delays, bounds and cold-start rule."""

import gc
import subprocess
import sys
import threading
import weakref
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ray.serve.config import AutoscalingPolicy

from serve_app.controller import serve_policy
from serve_app.controller.cold_starts import ColdStarts, StartUp
from serve_app.controller.document_exchange import Deployment, DocumentExchange
from serve_app.controller.serve_policy import ServePolicy
from serve_app.patches import ray_idle
from serve_app.patches.ray_idle import Rest
from serve_app.settings.knobs import Knobs, Schedule
from serve_app.wire.phases import Loss
from serve_app.wire.signals import ENGINE_FIELDS, INGRESS_FIELDS
from tests.policy.fake_application import KNOBS, Clock, FakeApplication, holding
from tests.stub_engine import LIMIT_S
from tests.stub_kv import StubKv


def knobs(**changed: Any) -> Knobs:
    return KNOBS.model_copy(update=changed)


# From zero, and to it.


def test_zero_to_n_takes_one_step(clock: Clock) -> None:
    app = FakeApplication(clock, {"a": KNOBS})
    app.tick()
    app.queue_in_ray("a", 1.0)
    targets = []
    for tick in range(10):  # the policy waits until the burst has arrived, and Ray's rule is asked meanwhile
        app.reports(a=holding(24, oldest_s=0.1 * tick))
        targets.append(app.tick(0.1)["Engine-a"])

    assert set(targets) == {0, 3}
    assert targets == sorted(targets)
    assert app.metrics.counted["decisions_total"] == [("a", "up")]


def test_n_to_zero_takes_one_step(clock: Clock) -> None:
    app = FakeApplication(clock, {"a": knobs(downscale_delay_s=60)}, targets={"a": 3})
    targets = []
    for _ in range(130):
        app.reports()
        targets.append(app.tick()["Engine-a"])

    assert set(targets) == {3, 0}
    assert targets[-1] == 0
    assert 55 <= targets.index(0) / 2 <= 62


def test_rays_factors_and_delays_change_no_step(clock: Clock) -> None:
    app = FakeApplication(clock, {"a": KNOBS}, targets={"a": 2})
    for _ in range(16):
        app.reports()
        app.engine("a", waiting_requests=60, waiting_tokens=600)
        targets = app.tick()

    assert targets["Engine-a"] == 8


# Modes.


def test_advise_changes_nothing_even_with_requests_queued_at_zero(clock: Clock) -> None:
    app = FakeApplication(clock, {"a": knobs(mode="advise")})
    for _ in range(20):
        app.queue_in_ray("a", 3.0)
        app.reports(a=holding(24))
        app.tick()

    assert app.target("a") == 0
    assert app.records("a")[-1]["wanted"] == 3
    assert app.mailbox.outbox.status["models"]["Engine-a"]["wanted"] == 3
    assert "decisions_total" not in app.metrics.counted


def test_changed_knob_takes_effect_at_the_next_decision(clock: Clock) -> None:
    app = FakeApplication(clock, {"a": knobs(mode="advise")})
    app.tick()
    app.reports(a=holding(24))
    app.tick()

    app.knobs("a", mode="act")

    assert app.tick()["Engine-a"] == 3


def test_requests_at_zero_keep_the_controller_awake(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    rest = Rest()
    monkeypatch.setattr(ray_idle, "REST", rest)
    app = FakeApplication(clock, {"a": knobs(mode="advise")})
    assert rest.is_due(quiet=True, awaits_checks=False, now=0.0)
    app.tick()
    assert not rest.is_due(quiet=True, awaits_checks=False, now=0.1)

    app.reports(a=holding(24))
    app.tick()

    assert rest.is_due(quiet=True, awaits_checks=False, now=0.1)


# Several deployments.


values = st.floats(0, 1e6) | st.sampled_from([float("nan"), float("inf")])
reports_of_b = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(INGRESS_FIELDS), values, max_size=5),
        st.dictionaries(st.sampled_from(ENGINE_FIELDS), values, max_size=5),
        st.integers(0, 5),
    ),
    min_size=12,
    max_size=12,
)


def targets_of_a(clock: Clock, of_b: list[tuple[dict[str, float], dict[str, float], int]]) -> list[int]:
    """What a gets over some seconds of a given load, whatever b reports, asks for and has."""
    clock.now = Clock().now
    app = FakeApplication(clock, {"a": KNOBS, "b": KNOBS}, targets={"a": 1, "b": 2})
    targets = []
    for second, (ingress, engine, running) in enumerate(of_b):
        app.run("Engine-b", running)
        held = holding(6 * second) if second % 5 else {}
        app.reports(a=held, b=ingress)
        app.engine("a", waiting_requests=4.0 * second, waiting_tokens=900.0 * second)
        if running:
            app.engine("b", **engine)
        app.queue_in_ray("b", 50.0)
        app.tick(1.0)
        targets.append(app.target("a"))
    return targets


@pytest.fixture
def with_a_quiet_b(clock: Clock) -> list[int]:
    return targets_of_a(clock, [({}, {}, 2)] * 12)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(of_b=reports_of_b)
def test_no_signal_of_one_model_changes_the_replicas_of_another(
    clock: Clock, with_a_quiet_b: list[int], of_b: list[tuple[dict[str, float], dict[str, float], int]]
) -> None:
    assert targets_of_a(clock, of_b) == with_a_quiet_b


def test_unknown_deployments_are_left_alone(clock: Clock) -> None:
    app = FakeApplication(clock, {"a": KNOBS}, others=("Somebody-elses",))
    for _ in range(10):
        app.reports(a=holding(24))
        targets = app.tick()

    assert targets["Somebody-elses"] == 1
    assert targets["Engine-a"] == 3


def test_nothing_changes_before_the_ingress_publishes_its_models(clock: Clock) -> None:
    app = FakeApplication(clock, {"a": KNOBS}, targets={"a": 2})
    app.mailbox.inbox = type(app.mailbox.inbox)()
    app.queue_in_ray("a", 9.0)

    assert [app.tick()["Engine-a"] for _ in range(10)] == [2] * 10


def test_a_model_without_a_deployment_delays_no_other(clock: Clock) -> None:
    app = FakeApplication(clock, {"a": KNOBS, "b": KNOBS})
    app.tick()
    app.remove("Engine-a")
    app.reports(b=holding(24))

    assert app.tick()["Engine-b"] == 3


# What the rest of the application can read.


def test_status_separates_starting_from_pending_after_five_seconds(clock: Clock) -> None:
    app = FakeApplication(clock, {"a": KNOBS})
    app.startup(
        "a",
        Deployment(
            {"r1": {"phase": "weights_and_kv_cache", "since": clock.now, "durations_s": {}}},
            ColdStarts((StartUp("r0", {"imports": 10.0, "weights_and_kv_cache": 30.0}, False, ""),)),
            "no node has a free GPU",
        ),
    )
    app.tick()
    app.reports(a=holding(24))
    app.tick()
    app.tick()
    early = app.mailbox.outbox.status["models"]["Engine-a"]
    for _ in range(12):
        app.tick()
    late = app.mailbox.outbox.status["models"]["Engine-a"]

    assert (early["starting"], early["pending"], early["reason"]) == (3, 0, "")
    assert (late["starting"], late["pending"], late["reason"]) == (1, 2, "no node has a free GPU")
    assert late["pending_s"] >= 5
    assert (late["cold_start_s"], late["phases_s"]) == (40.0, {"imports": 10.0, "weights_and_kv_cache": 30.0})
    assert (late["warm_node"], late["warm_node_start_s"], late["cold_node_start_s"]) == (False, None, 40.0)
    assert (late["warm_node_phases_s"], late["cold_node_phases_s"]) == ({}, late["phases_s"])
    assert app.mailbox.outbox.unsettled == {"Engine-a"}


def test_status_says_whether_the_zygote_is_on(clock: Clock) -> None:
    app = FakeApplication(clock, {"a": KNOBS})
    app.tick()
    assert app.mailbox.outbox.status["zygote"] is True

    served = app.mailbox.inbox.served
    assert served is not None
    app.mailbox.inbox = replace(app.mailbox.inbox, served=replace(served, zygote=False))
    app.tick()

    assert app.mailbox.outbox.status["zygote"] is False


def test_change_is_sent_at_once_with_its_reasons(clock: Clock) -> None:
    app = FakeApplication(clock, {"a": KNOBS})
    app.tick()
    before = app.mailbox.sent
    app.reports(a=holding(24))
    app.tick()

    record = app.records("a")[-1]
    assert app.mailbox.sent == before + 1
    assert (record["kind"], record["old_target"], record["new_target"]) == ("change", 0, 3)
    assert record["signals"]["held_requests"] == 24
    assert {term["name"] for term in record["terms"]} >= {"queue", "demand", "kv_cache", "awake"}


def test_policy_offers_its_memory_and_ends_its_thread_with_itself(kv: StubKv, clock: Clock) -> None:
    app = FakeApplication(clock, {"a": KNOBS})
    app.tick()
    memories = app.mailbox.outbox.memories
    assert memories is not None
    assert set(memories) == {"Engine-a"}

    app.policy.mailbox = None
    app.tick()
    gone, sync = weakref.ref(app.policy), app.policy.mailbox
    assert isinstance(sync, DocumentExchange)
    del app
    gc.collect()

    assert gone() is None
    assert sync.join(LIMIT_S)


def test_controllers_loop_never_calls_the_gcs(
    kv: StubKv, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GCS that hangs would hold up every deployment of the cluster, from the first call on."""
    threads: set[threading.Thread] = set()
    answers = threading.Event()
    get = kv._internal_kv_get

    def hanging(key: str, *, namespace: str) -> bytes | None:
        threads.add(threading.current_thread())
        answers.wait(LIMIT_S)
        return get(key, namespace=namespace)

    monkeypatch.setattr(kv, "_internal_kv_get", hanging)
    app = FakeApplication(clock, {"a": KNOBS})
    app.policy.mailbox = None
    app.reports(a=holding(24))

    targets = [app.tick()["Engine-a"] for _ in range(5)]

    sync = app.policy.mailbox
    assert isinstance(sync, DocumentExchange)
    sync.stop()
    answers.set()
    assert sync.join(LIMIT_S)
    assert targets == [0] * 5
    assert threads
    assert threading.current_thread() not in threads


def test_policy_survives_rays_pickling() -> None:
    # Ray pickles the module of a policy by value: whatever is global in it goes along.
    path = f"{ServePolicy.__module__}:{ServePolicy.__qualname__}"
    sent = AutoscalingPolicy(policy_function=path)._serialized_policy_def
    script = "import sys, pickle; print(pickle.load(sys.stdin.buffer)()({}))"

    received = subprocess.run([sys.executable, "-c", script], input=sent, capture_output=True, check=False)

    assert received.stdout.decode().strip() == "({}, {})", received.stderr.decode()


# What it costs.


def test_replica_seconds_are_counted_by_state(clock: Clock) -> None:
    app = FakeApplication(clock, {"a": knobs(min_replicas=2)}, targets={"a": 2})
    for _ in range(21):
        app.tick()

    assert app.metrics.replica_seconds == {"a": {"ready": 20.0}}

    app.run("Engine-a", 1)  # one of the two is lost, and its successor starts
    for _ in range(3):
        app.tick()

    assert app.metrics.replica_seconds == {"a": {"ready": 20.0 + 1.0 + 1.0, "starting": 1.0}}


def test_metrics_have_the_gpus_of_a_replica(clock: Clock) -> None:
    app = FakeApplication(clock, {"a": KNOBS, "b": KNOBS})
    served = app.mailbox.inbox.served
    assert served is not None
    models = {**served.models}
    models["Engine-b"] = replace(models["Engine-b"], resources={"CPU": 1.0, "GPU": 4.0})
    app.mailbox.inbox = replace(app.mailbox.inbox, served=replace(served, models=models))
    app.tick()

    assert app.metrics.values["a"]["gpus_per_replica"] == 0.0
    assert app.metrics.values["b"]["gpus_per_replica"] == 4.0


# How often it decides.


@pytest.mark.parametrize(("target", "requests", "interval_s"), [(1, 3, 0.5), (0, 0, 0.5), (0, 3, 0.125)])
def test_decisions_come_twice_a_second_and_faster_for_queued_requests(
    clock: Clock, target: int, requests: int, interval_s: float
) -> None:
    app = FakeApplication(clock, {"a": knobs(mode="advise")}, targets={"a": target})
    at: list[float] = []
    decide = app.policy.decide
    app.policy.decide = lambda *args: (at.append(clock.now), decide(*args))[1]  # type: ignore[method-assign]
    for _ in range(50):
        app.reports(a=holding(requests))
        app.tick(0.125)  # about as often as Ray asks

    gaps = {later - earlier for earlier, later in pairwise(at[1:])}
    assert gaps == {interval_s}


def test_an_unreadable_report_is_counted_as_an_error(clock: Clock) -> None:
    app = FakeApplication(clock, {"a": knobs(mode="advise")}, targets={"a": 0})
    app.tick()

    class Unreadable:
        app_name, deployment_name, target_num_replicas = "tideserve", "Ingress", 0

        @property
        def raw_metrics(self) -> Any:
            raise ValueError("what was that?")

    clock.now += 0.1
    assert app.policy({"Ingress": Unreadable()}) == ({}, {})
    assert app.metrics.errors == 1


def test_lost_replica_is_counted_and_recorded_once(clock: Clock) -> None:
    app = FakeApplication(clock, {"a": knobs(min_replicas=1), "b": KNOBS}, targets={"a": 1, "b": 0})
    app.tick()
    why = "Replica r1 was lost (engine_hung): it hung."
    app.mailbox.losses.append(Loss("Engine-a", "r1", "engine_hung", why))
    app.mailbox.losses.append(Loss("Engine-removed", "r2", "engine_hung", "of a model that is not served"))

    for _ in range(3):
        app.tick()

    assert app.metrics.counted["losses_total"] == [("a", "engine_hung")]
    (record,) = [each for each in app.mailbox.outbox.decisions if each["kind"] == "loss"]
    assert (record["model"], record["old_target"], record["new_target"]) == ("a", 1, 1)
    assert (record["binding"], record["reason"]) == ("loss", "Replica r1 was lost (engine_hung): it hung.")
    assert app.mailbox.sent


def test_only_replicas_that_ray_put_into_service_are_lost(clock: Clock) -> None:
    """A deploy ends a replica that has just become ready, and that Ray has not seen so."""
    app = FakeApplication(clock, {"a": knobs(min_replicas=2)}, targets={"a": 2})
    app.tick()
    app.run("Engine-a", 1)  # Ray finds the death of the second
    app.tick()

    for replica in ("Engine-a-1", "never-ran"):
        app.mailbox.losses.append(Loss("Engine-a", replica, "process_ended", f"Replica {replica} was lost."))
    app.tick()

    reasons = [each["reason"] for each in app.mailbox.outbox.decisions if each["kind"] == "loss"]
    assert reasons == ["Replica Engine-a-1 was lost."]
    assert app.metrics.counted["losses_total"] == [("a", "process_ended")]


def test_schedules_and_records_go_by_the_machines_clock(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was set ahead by an hour, which the clock for durations takes over in ten."""
    ahead = SimpleNamespace(time=lambda: clock.now + 3600.0)
    monkeypatch.setattr(serve_policy, "time", ahead)
    window = Schedule(start="23:10", end="23:20", min_replicas=4)  # the test begins at 22:13:20
    app = FakeApplication(clock, {"a": knobs(schedules=(window,))})

    app.tick()

    assert app.target("a") == 4
    assert [record["at"] for record in app.records("a")] == [ahead.time()]
