"""Lanes in vLLM's own scheduler, step by step."""

from collections import Counter

import pytest

from serve_app.engine.sequence_lanes import lane_of
from serve_app.settings.caller import Lane
from tests.engine.simulated_core import BLOCK, SimulatedCore, flood

BOTH = pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])


@BOTH
@pytest.mark.parametrize("lane", ["interactive", "standard"])
def test_other_lane_runs_in_the_next_step_of_a_full_batch(asynchronous: bool, lane: Lane) -> None:
    core = SimulatedCore(asynchronous=asynchronous, max_num_seqs=8)
    flood(core)
    core.steps(5)

    core.send("chat", lane, prompt=30)

    assert core.step()["chat"] == 30
    assert len(core.running) == 8


@BOTH
def test_as_many_background_sequences_leave_as_places_are_needed(asynchronous: bool) -> None:
    core = SimulatedCore(asynchronous=asynchronous, max_num_seqs=8)
    flood(core)
    core.steps(5)
    for number in range(3):
        core.send(f"chat-{number}", "interactive")

    step = core.step()

    assert {f"chat-{number}" for number in range(3)} <= set(step)
    assert sum(name.startswith("background") for name in core.running) == 5


@BOTH
def test_background_leaves_when_kv_blocks_run_out(asynchronous: bool) -> None:
    core = SimulatedCore(blocks=41, asynchronous=asynchronous, max_num_seqs=16)  # one is vLLM's null block
    flood(core, 4, prompt=9 * BLOCK)
    core.steps(3)
    assert len(core.running) == 4

    core.send("chat", "interactive", prompt=8 * BLOCK)

    assert core.step()["chat"] == 8 * BLOCK
    assert len(core.running) == 4


def test_no_background_sequence_leaves_without_need() -> None:
    core = SimulatedCore(max_num_seqs=8)
    flood(core, 7)
    core.steps(5)
    core.send("chat", "interactive")

    core.step()

    assert len(core.running) == 8


def test_interactive_takes_no_place_of_standard() -> None:
    core = SimulatedCore(max_num_seqs=8)
    flood(core, 8, "standard")
    core.steps(5)
    core.send("chat", "interactive")

    assert "chat" not in core.step()
    assert len(core.running) == 8


@BOTH
def test_preempted_sequence_gets_all_its_tokens(asynchronous: bool) -> None:
    core = SimulatedCore(asynchronous=asynchronous, max_num_seqs=2)
    core.send("a", "background", output=50)
    core.send("b", "background", output=50)
    for number in range(10):
        core.steps(4)
        core.send(f"chat-{number}", "interactive", output=2)
    while core.scheduler.has_requests():
        core.step()

    assert len(core.outputs["a"]) == len(core.outputs["b"]) == 50
    assert all(len(core.outputs[f"chat-{number}"]) == 2 for number in range(10))


def test_preempted_sequence_computes_only_what_its_blocks_lack() -> None:
    core = SimulatedCore(max_num_seqs=1)
    core.send("a", "background", prompt=10 * BLOCK)
    core.steps(3)
    core.send("chat", "interactive", output=1)
    core.step()

    assert core.step()["a"] <= BLOCK


@BOTH
def test_step_with_a_prompt_of_another_lane_runs_no_background(asynchronous: bool) -> None:
    core = SimulatedCore(asynchronous=asynchronous, max_num_seqs=8, max_num_batched_tokens=64)
    core.send("decodes", "background")
    core.steps(3)
    core.send("long", "background", prompt=1000)
    core.steps(2)
    core.send("waits", "background", prompt=1000)
    core.send("chat", "interactive", prompt=100)

    first, second, third = core.step(), core.step(), core.step()

    assert first == {"chat": 64}
    assert second == {"chat": 36}
    assert third["chat"] == third["decodes"] == 1
    assert third["long"] == 62


def test_tokens_of_a_step_go_to_other_lanes_first() -> None:
    core = SimulatedCore(max_num_seqs=8, max_num_batched_tokens=16)
    core.send("long", "background", prompt=1000)
    core.step()
    core.send("chat", "interactive", prompt=16)
    core.step()

    assert core.step() == {"chat": 1, "long": 15}


@pytest.mark.parametrize(
    ("max_num_seqs", "share"), [(1, 0.2), (1, 0.5), (8, 0.0), (8, 0.5), (8, 1.0), (32, 0.2)]
)
def test_standard_gets_its_share_of_the_batch(max_num_seqs: int, share: float) -> None:
    core = SimulatedCore(max_num_seqs=max_num_seqs)
    core.lane_knobs["standard"] = share
    tokens = {"interactive": 0, "standard": 0}
    number = 0
    for _ in range(500):
        waiting = [lane_of(request.priority) for request in core.scheduler.waiting]
        for lane in ("interactive", "standard"):
            for _ in range(max_num_seqs - waiting.count(lane)):
                core.send(f"{lane}-{number}", lane, prompt=1, output=10)
                number += 1
        for name in core.step():
            tokens[name.partition("-")[0]] += 1

    assert tokens["standard"] / sum(tokens.values()) == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize(
    ("asynchronous", "blocked"),
    [(False, []), (True, ["standard"]), (False, ["interactive"]), (True, ["standard", "interactive"])],
)
def test_sequence_without_place_for_adapter_takes_no_share(asynchronous: bool, blocked: list[Lane]) -> None:
    core = SimulatedCore(
        asynchronous=asynchronous, max_num_seqs=6, lora={"max_loaded": 1, "max_cached": 1}, blocks=4000
    )
    core.send("adapted", "interactive", adapter=1)
    core.step()
    for lane in blocked:
        core.send(f"blocked {lane}", lane, adapter=2)
    for number in range(400):
        core.send(f"interactive-{number}", "interactive", output=5)
        core.send(f"standard-{number}", "standard", output=5)

    core.steps(300)

    begun = Counter(name.partition("-")[0] for name, tokens in core.outputs.items() if tokens)
    assert not any(name.startswith("blocked") for name in begun)
    assert begun["standard"] / (begun["standard"] + begun["interactive"]) == pytest.approx(0.2, abs=0.01)


@BOTH
def test_sequence_without_place_for_adapter_stops_no_background(asynchronous: bool) -> None:
    core = SimulatedCore(asynchronous=asynchronous, max_num_seqs=4, lora={"max_loaded": 1, "max_cached": 1})
    core.send("adapted", "interactive", adapter=1)
    flood(core, 8)
    core.steps(3)
    running = core.running
    core.send("blocked", "interactive", adapter=2)

    assert set(core.step()) == running
    core.abort(["adapted"])
    assert "blocked" in core.step()


def test_sequence_of_a_loaded_adapter_takes_a_place_of_background() -> None:
    core = SimulatedCore(max_num_seqs=4, lora={"max_loaded": 1, "max_cached": 1})
    core.send("adapted", "interactive", adapter=1)
    flood(core, 8)
    core.steps(3)
    core.send("same adapter", "interactive", adapter=1)

    assert "same adapter" in core.step()


def test_key_behind_its_share_takes_the_place_of_an_adapter() -> None:
    core = SimulatedCore(max_num_seqs=1, lora={"max_loaded": 1, "max_cached": 1}, blocks=4000)
    core.send("first", "standard", key="c", prompt=20, output=1500)
    core.step()
    for number in range(30):
        core.send(f"ahead-{number}", "standard", key="a", prompt=400, output=1500, adapter=1)
    core.abort(["first"])
    core.steps(2)
    core.abort([f"ahead-{number}" for number in range(29)])
    core.steps(10)
    core.send("behind", "standard", key="b", prompt=20, output=5, adapter=2)

    assert "behind" in core.step()


def test_sequence_takes_the_place_of_the_adapter_of_background() -> None:
    core = SimulatedCore(max_num_seqs=4, lora={"max_loaded": 1, "max_cached": 1})
    core.send("adapted", "background", adapter=1)
    core.steps(3)
    core.send("other adapter", "interactive", adapter=2)

    assert set(core.step()) == {"other adapter"}


def test_standard_owes_nothing_for_places_taken_while_interactive_was_absent() -> None:
    core = SimulatedCore(max_num_seqs=10)
    for number in range(10):
        core.send(f"before-{number}", "standard")
    core.step()
    flood(core, 20, "standard")
    flood(core, 20, "interactive")
    core.abort([f"before-{number}" for number in range(10)])

    core.step()

    assert sum(name.startswith("standard") for name in core.running) == 2


def test_clients_that_leave_free_their_places() -> None:
    core = SimulatedCore(max_num_seqs=2)
    flood(core, 4, "background")
    core.step()
    core.send("chat", "interactive")
    core.step()

    core.abort([*core.running, "background-3"])
    core.step()

    assert core.running == {"background-1", "background-2"}
    core.abort(list(core.outputs))
    assert not core.scheduler.has_unfinished_requests()


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_front_end_learns_what_an_aborted_prefill_has_computed(asynchronous: bool, alone: bool) -> None:
    core = SimulatedCore(asynchronous=asynchronous, max_num_seqs=2, max_num_batched_tokens=64)
    if not alone:
        core.send("runs", "standard")
        core.steps(3)
    core.send("leaves", "standard", prompt=1000)
    core.send("waits", "standard", prompt=1000)
    core.send("waits too", "standard", prompt=1000)
    core.steps(5)
    assert "leaves" not in core.computed
    core.abort(["leaves", "waits too"])
    if alone:
        core.abort(["waits"])
    core.steps(1 + asynchronous)

    # Beside the other sequence, a step has 63 tokens of the prompt.
    assert core.computed["leaves"] == (320 if alone else 315)
    assert core.computed["waits too"] == 0
    assert core.outputs["leaves"] == []


def test_configured_fcfs_ignores_lanes() -> None:
    core = SimulatedCore(max_num_seqs=8, scheduling_policy="fcfs")
    flood(core, 8)
    core.step()
    core.send("chat", "interactive")

    assert "chat" not in core.step()
