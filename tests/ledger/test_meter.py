from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.ledger.usage import Account, Amounts
from tests.ledger.replica import FakeCall, FakeReplica

ALICE = Account("tide", "alice", "standard")


@pytest.fixture
def replica() -> FakeReplica:
    made = FakeReplica()
    made.serve()
    return made


def approx(**seconds: float) -> object:
    return pytest.approx(seconds, abs=1e-9)


def test_each_moment_has_one_state() -> None:
    replica = FakeReplica(began_s=2.0)
    replica.now += 8.0
    replica.serve()
    replica.now += 3.0
    call = replica.begin()
    replica.step(1.0, prefill=100, first=call)
    replica.step(0.5, call)
    replica.meter.drain()
    replica.step(0.5, call)
    replica.end(call)
    replica.now += 4.0

    assert replica.gpu_seconds() == approx(starting=10.0, idle=3.0, alice=2.0, draining=4.0)


def test_a_replica_with_several_gpus_spends_them_all() -> None:
    replica = FakeReplica(gpus=4, price=3600.0)
    replica.now += 5.0

    assert replica.take() == {Account("tide", state="starting"): Amounts(gpu_seconds=20.0, cost=20.0)}


def test_sequences_of_a_decoding_step_pay_the_same(replica: FakeReplica) -> None:
    alice, bob = replica.begin("alice"), replica.begin("bob", n=3)
    replica.step(1.0, prefill=400, first=alice)
    for sequence in bob.sequences:
        sequence.is_prefilling, sequence.stats.num_generation_tokens = False, 1
    replica.take()
    replica.amounts.clear()

    for _ in range(10):
        replica.step(0.04, alice, bob)

    assert replica.gpu_seconds() == approx(alice=0.1, bob=0.3)


def test_a_sequence_pays_only_for_steps_it_was_in(replica: FakeReplica) -> None:
    alice = replica.begin("alice", prompt=1)
    replica.step(0.01, prefill=1, first=alice)
    replica.take()
    replica.amounts.clear()
    for _ in range(5):
        replica.step(0.1, alice)
    replica.end(alice)
    bob = replica.begin("bob", prompt=1)
    replica.step(0.1, prefill=1, first=bob)
    for _ in range(3):
        replica.step(0.1, bob)

    assert replica.gpu_seconds() == approx(alice=0.5, bob=0.4)


def test_prompt_and_answer_tokens_of_a_step_pay_the_same(replica: FakeReplica) -> None:
    alice = replica.begin("alice", prompt=10)
    replica.step(0.1, prefill=10, first=alice)
    replica.take()
    replica.amounts.clear()
    bob = replica.begin("bob", prompt=49)

    replica.step(1.0, alice, prefill=49, first=bob)

    assert replica.gpu_seconds() == approx(alice=0.02, bob=0.98)


def test_cached_prompt_tokens_cost_nothing(replica: FakeReplica) -> None:
    alice, bob = replica.begin("alice", prompt=100), replica.begin("bob", prompt=100)
    alice.sequences[0].num_cached_tokens = 75
    replica.step(1.0, prefill=125, first=alice)
    bob.sequences[0].is_prefilling = False

    assert replica.gpu_seconds() == approx(alice=0.2, bob=0.8)


def test_a_long_prefill_pays_while_it_goes_on(replica: FakeReplica) -> None:
    long = replica.begin("long", prompt=3000)
    waiting = replica.begin("waiting", prompt=500)
    replica.step(1.0, prefill=1000)

    assert replica.gpu_seconds() == approx(long=1.0)

    replica.step(1.0, prefill=1000)
    replica.step(1.0, prefill=1500, first=long)
    waiting.sequences[0].is_prefilling = False

    # The last step takes 1 s for 1,500 tokens, the one before 1 s for 1,000.
    assert replica.gpu_seconds() == pytest.approx({"long": 2.6, "waiting": 0.4})


def test_prompts_that_wait_behind_a_higher_lane_pay_nothing(replica: FakeReplica) -> None:
    for _ in range(8):
        replica.begin("batch", prompt=4000, lane="background")
    replica.begin("web", prompt=30_000, lane="interactive")
    replica.step(1.0, prefill=8000)
    replica.step(1.0, prefill=8000)

    assert replica.gpu_seconds() == approx(web=2.0)


def test_a_prompt_aborted_in_the_queue_pays_nothing(replica: FakeReplica) -> None:
    gone = replica.begin("gone", prompt=4000, lane="interactive")
    replica.begin("alice", prompt=30_000, lane="background")
    replica.step(1.0, prefill=8000)
    replica.end(gone, status=None)

    assert replica.gpu_seconds() == approx(alice=1.0)


def test_an_aborted_prompt_pays_what_no_other_prompt_did(replica: FakeReplica) -> None:
    gone = replica.begin("gone", prompt=4000)
    replica.begin("alice", prompt=1000)
    replica.step(1.0, prefill=4000)
    replica.end(gone, status=None)

    assert replica.gpu_seconds() == approx(alice=0.25, gone=0.75)


@pytest.mark.parametrize("decodes", [False, True])
def test_a_long_step_is_paid_by_requests_that_have_begun(replica: FakeReplica, decodes: bool) -> None:
    if decodes:
        replica.step(1.0, prefill=100, first=replica.begin("bob"))
        replica.take()
        replica.amounts.clear()
    gone = replica.begin("gone", lane="interactive")
    for _ in range(8):
        replica.begin("batch", lane="background")
    replica.begin("web", prompt=30_000, lane="interactive")
    replica.end(gone, status=None)
    replica.now += 2.0

    shares = {"bob": 1.0, "web": 1.0} if decodes else {"web": 2.0}
    assert replica.gpu_seconds() == approx(**shares)


def test_an_engine_that_stands_still_is_paid_by_its_requests(replica: FakeReplica) -> None:
    call = replica.begin()
    replica.now += 7.0

    assert replica.gpu_seconds() == approx(alice=7.0)
    replica.end(call, status=None)


def test_a_call_without_a_sequence_uses_nothing(replica: FakeReplica) -> None:
    """Such as `/tokenize`, or a body that is refused."""
    call = replica.begin(n=0)
    replica.now += 2.0
    replica.end(call)

    assert replica.take() == {Account("tide", state="idle"): Amounts(gpu_seconds=2.0)}


def test_tokens_of_an_answer_are_those_of_openais_usage(replica: FakeReplica) -> None:
    call = replica.begin(prompt=100, n=2)
    for sequence in call.sequences:
        sequence.num_cached_tokens = 64
    replica.step(1.0, prefill=36, first=call)
    replica.step(1.0, call)
    assert replica.take()[ALICE] == Amounts(gpu_seconds=pytest.approx(2.0))
    replica.end(call)

    assert replica.take()[ALICE] == Amounts(1, 100, 64, 4)


def test_a_stream_counts_as_it_is_delivered(replica: FakeReplica) -> None:
    call = replica.begin(streamed=True)
    replica.step(1.0, prefill=100, first=call)
    call.status, call.delivered.tokens = 200, 1
    first = replica.take()[ALICE]
    replica.step(1.0, call)
    replica.step(1.0, call)
    call.delivered.tokens = 2

    assert (first.requests, first.prompt_tokens, first.completion_tokens) == (1, 100, 1)
    assert replica.take()[ALICE] == Amounts(completion_tokens=1, gpu_seconds=pytest.approx(2.0))


def test_a_moved_stream_counts_once(replica: FakeReplica) -> None:
    """Its second engine computes prompt and delivered tokens, and counts only the GPU time and new tokens."""
    call = replica.begin(prompt=100 + 50, streamed=True, moved=True)
    replica.step(1.0, prefill=150, first=call)
    call.status, call.delivered.tokens = 200, 1
    replica.end(call)

    assert replica.take()[ALICE] == Amounts(completion_tokens=1, gpu_seconds=pytest.approx(1.0))


@pytest.mark.parametrize("status", [None, 400, 500])
def test_a_call_that_is_not_answered_uses_only_gpu_time(replica: FakeReplica, status: int | None) -> None:
    """Another replica may answer it."""
    call = replica.begin()
    replica.step(1.0, prefill=100, first=call)
    replica.end(call, status)

    assert replica.take()[ALICE] == Amounts(gpu_seconds=pytest.approx(1.0))


@given(st.data())
def test_all_gpu_seconds_are_accounted_for(data: st.DataObject) -> None:
    """Whatever happens: keys, idle, starting and draining sum to the replica's life."""
    gpus = data.draw(st.integers(1, 8))
    replica = FakeReplica(gpus, began_s=1.0)
    began = replica.now - 1.0
    calls: list[FakeCall] = []
    seconds = st.floats(0.0, 5.0)
    actions = st.sampled_from(["serve", "begin", "step", "chunk", "end", "take", "drain"])
    for action in data.draw(st.lists(actions)):
        replica.now += data.draw(seconds)
        chosen = [call for call in calls if data.draw(st.booleans())]
        if action == "serve":
            replica.serve()
        elif action == "drain":
            replica.meter.drain()
        elif action == "begin":
            key, n = data.draw(st.sampled_from(["alice", "bob"])), data.draw(st.integers(0, 3))
            calls.append(replica.begin(key, data.draw(st.integers(0, 5000)), n=n))
        elif action == "step":
            ready = [call for call in chosen if not any(one.is_prefilling for one in call.sequences)]
            first = next((call for call in chosen if call not in ready), None)
            replica.step(data.draw(seconds), *ready, prefill=data.draw(st.integers(0, 8192)), first=first)
        elif action == "chunk":
            replica.step(data.draw(seconds), prefill=data.draw(st.integers(0, 8192)))
        elif action == "end":
            for call in chosen:
                calls.remove(call)
                replica.end(call)
        else:
            taken = replica.take()
            assert all(each.gpu_seconds >= 0.0 for each in taken.values())

    total = sum(replica.gpu_seconds().values())
    assert total == pytest.approx(gpus * (replica.now - began), rel=1e-9)


def test_the_cost_of_a_step_does_not_grow_with_the_batch(replica: FakeReplica) -> None:
    """A step reads no sequence: reading one would raise."""
    replica.requests.update({number: SimpleNamespace() for number in range(1000)})

    replica.meter.step(0, 1000, 1000, True)
