from dataclasses import astuple

import pytest

from serve_app.learning.next_decision import learn
from serve_app.learning.state import PolicyState, restore
from serve_app.learning.step_time_fit import StepTimeFit
from serve_app.policy.capacity_model import StepTime
from serve_app.policy.decide import Decision
from serve_app.policy.inputs import Inputs
from serve_app.policy.snapshot import Snapshot
from serve_app.settings.knobs import Knobs, StartingValues
from tests.policy.build import NOW, PolicyLoop, engine, ingress, snapshot

CPU = StartingValues(
    step_base_s=0.004,
    step_per_sequence_s=0.00027,
    step_per_kv_token_s=4.3e-7,
    step_per_prefill_token_s=6.4e-5,
    cold_start_s=(22.0, 26.0),
)
L4 = CPU.model_copy(update={"step_base_s": 0.064, "step_per_prefill_token_s": 2.65e-4})
KNOBS = Knobs(max_replicas=20)
BUSY = engine(running_requests=2, steps=60, step_s=0.012, step_batch=2, step_kv_tokens=1200)


def given(values: StartingValues | None) -> Knobs:
    return KNOBS.model_copy(update={"starting_values": values})


def learned(seen: Snapshot, knobs: Knobs, state: PolicyState) -> Inputs:
    inputs, _ = learn(seen, knobs, state, NOW)
    return inputs


def arriving(loop: PolicyLoop, rps: float, seconds: int = 40) -> Decision:
    """Requests come and none has been answered."""
    for second in range(seconds):
        front = ingress(arrivals_total=rps * second, arrived_bytes_total=2048 * rps * second)
        decision = loop.decide(snapshot(engine(), at={"i0": front}))
    return decision


def why(decision: Decision, term: str) -> str:
    return next(found.why for found in decision.terms if found.name == term)


def test_without_starting_values_the_general_prior_is_used() -> None:
    loop = PolicyLoop(KNOBS)
    decision = loop.decide(snapshot(engine()))

    assert loop.state.service == StepTimeFit()
    assert loop.state.started_with is None
    assert decision.notes == ()


def test_starting_values_size_the_fleet_before_the_first_step() -> None:
    slow, usual = arriving(PolicyLoop(given(L4)), 12.0), arriving(PolicyLoop(KNOBS), 12.0)

    assert slow.signals["step_base_s"] == pytest.approx(0.064)
    assert slow.target > usual.target
    assert why(slow, "demand").count("requests/s (from starting_values), so") == 1
    assert "starting_values" not in why(usual, "demand")


def test_notes_say_which_values_are_not_measured_yet() -> None:
    loop = PolicyLoop(given(CPU))

    assert loop.decide(snapshot(engine())).notes == (
        "starting_values: No step is measured yet, so they give the capacity of a replica.",
        "starting_values: No start is measured yet, so 24 s are assumed.",
    )
    assert loop.decide(snapshot(BUSY)).notes == (
        "starting_values: No start is measured yet, so 24 s are assumed.",
    )
    assert loop.decide(snapshot(BUSY, warm_node_start_s=3.0)).notes == (
        "starting_values: No start on a cold node is measured yet, so 24 s are assumed.",
    )
    assert loop.decide(snapshot(BUSY, cold_node_start_s=31.0)).notes == ()


def test_the_assumed_start_is_the_horizon_until_one_is_measured() -> None:
    loop = PolicyLoop(given(CPU))

    def horizon_s(seen: Snapshot) -> float:
        return learned(seen, loop.knobs, loop.state).snapshot.horizon_s

    assert horizon_s(snapshot(BUSY)) == 24.0
    assert horizon_s(snapshot(BUSY, cold_node_start_s=31.0)) == 31.0
    loop.knobs = KNOBS
    assert horizon_s(snapshot(BUSY)) == 60.0


@pytest.mark.parametrize(("start_s", "seconds"), [(43.0, 110.0), (3.0, 60.0)])
def test_scale_down_waits_until_a_rise_is_visible(start_s: float, seconds: float) -> None:
    knobs = KNOBS.model_copy(update={"downscale_delay_s": 10.0, "downscale_to_zero_delay_s": 60.0})
    seen = snapshot(engine(), cold_node_start_s=start_s)

    assert learned(seen, knobs, PolicyState(since=NOW)).unobserved_s == seconds
    unforeseen = knobs.model_copy(update={"forecast": False})
    assert learned(seen, unforeseen, PolicyState(since=NOW)).unobserved_s == 60.0


def test_assumed_kv_cache_counts_until_reported() -> None:
    small = CPU.model_copy(update={"kv_cache_tokens": 1024})
    unknown, known = engine(kv_cache_tokens=0.0), engine()

    def capacity(values: StartingValues, reading: object) -> float:
        decision = PolicyLoop(given(values)).decide(snapshot(reading))  # type: ignore[arg-type]
        return decision.signals["replica_capacity_rps"]

    assert capacity(small, unknown) < 0.5 * capacity(CPU, unknown)
    assert capacity(small, known) == capacity(CPU, known)


def test_changed_starting_values_replace_a_prior_without_steps() -> None:
    loop = PolicyLoop(given(CPU))
    loop.decide(snapshot(engine()))

    loop.knobs = given(L4)
    loop.decide(snapshot(engine()))
    assert loop.state.service.step_time().base_s == pytest.approx(0.064)
    loop.knobs = KNOBS
    loop.decide(snapshot(engine()))
    assert loop.state.service == StepTimeFit()


def test_changed_starting_values_leave_a_learned_fit_alone() -> None:
    once, changed = PolicyLoop(given(CPU)), PolicyLoop(given(CPU))
    for loop in (once, changed):
        loop.decide_for(30, snapshot(BUSY))
    changed.knobs = given(L4)
    for loop in (once, changed):
        loop.decide_for(5, snapshot(BUSY))

    assert changed.state.service == once.state.service
    assert changed.state.started_with == StepTime(*CPU.coefficients)


def test_a_restored_memory_without_steps_takes_the_present_starting_values() -> None:
    fresh = PolicyLoop(given(CPU))
    fresh.decide(snapshot(engine()))
    experienced = PolicyLoop(given(CPU))
    experienced.decide_for(30, snapshot(BUSY))

    began, went_on = (PolicyLoop(given(L4), restore(old.state.document())) for old in (fresh, experienced))
    for loop in (began, went_on):
        loop.decide(snapshot(engine()))

    assert astuple(began.state.service.step_time()) == pytest.approx(L4.coefficients)
    assert went_on.state.service == experienced.state.service
