from itertools import repeat

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.ingress.attempt import (
    MOST_BODY_BYTES,
    MOST_TOKENS,
    Delivered,
    EngineFailedError,
    RetryBudget,
    raise_if_lost,
)
from serve_app.ingress.engine_channel import NeverBegunError
from serve_app.wire.data_plane import Continuation, Piece

FAILED, KILLED = EngineFailedError("by itself"), ConnectionError("killed")
NEVER_BEGUN = NeverBegunError("dead already")


def after(*errors: ConnectionError, answered: bool = True) -> RetryBudget:
    budget = RetryBudget()
    budget.answered = answered
    for error in errors:
        budget.charge(error, still_s=0.0, there_s=1.0)
    return budget


@pytest.mark.parametrize(
    ("errors", "answered", "spent"),
    [
        ([FAILED], True, False),
        ([FAILED] * 2, True, True),
        ([KILLED] * 3, True, False),  # a rack goes down, process after process
        ([KILLED] * 4, True, True),
        ([FAILED, KILLED], True, False),
        ([FAILED, KILLED, KILLED], True, True),
        ([NEVER_BEGUN] * 9, True, False),
        ([KILLED] * 2, False, True),
    ],
)
def test_killed_engines_cost_less_than_failed_ones(
    errors: list[ConnectionError], answered: bool, spent: bool
) -> None:
    assert after(*errors, answered=answered).is_spent == spent


@pytest.mark.parametrize(("there_s", "cost"), [(4.9, 0), (5.1, 1), (5.6, 2)])
def test_loss_of_a_hung_engine_costs_by_certainty(there_s: float, cost: int) -> None:
    """A heartbeat was due within half a second of the moment from which the engine stands still."""
    budget = after()
    failed = budget.charge(KILLED, still_s=5.0, there_s=there_s)
    assert (budget.spent, failed) == (cost, cost == 2)


def test_sixteen_tokens_refund_earlier_losses() -> None:
    budget = after(FAILED)
    budget.refund(budget.spent, 15)
    assert budget.spent == 2
    budget.refund(budget.spent, 16)
    assert budget.spent == 0


def test_reasons_of_later_versions_count_as_failures() -> None:
    raise_if_lost("")
    for lost, kind in (("engine_dead", NeverBegunError), ("engine_stolen", EngineFailedError)):
        with pytest.raises(kind):
            raise_if_lost(lost)
    with pytest.raises(ConnectionError) as caught:
        raise_if_lost("engine_killed")
    assert not isinstance(caught.value, EngineFailedError)


def test_long_bodies_and_streams_are_not_kept() -> None:
    delivered = Delivered("a 7B", None)

    assert [delivered.keep(bytes(MOST_BODY_BYTES + more)) for more in (0, 1)] == [True, False]
    assert delivered.note(Piece(0, b"", [(1, list(repeat(7, MOST_TOKENS)))]))
    assert not delivered.note(Piece(0, b"", [(0, [7])]))


IDS = st.lists(st.integers(0, (1 << 31) - 1), max_size=5)
PIECES = st.lists(st.lists(st.tuples(st.integers(0, 2), IDS)))


@given(PIECES)
def test_next_engine_gets_the_same_outputs(pieces: list[list[tuple[int, list[int]]]]) -> None:
    delivered = Delivered("a 7B", None)
    for tokens in pieces:
        assert delivered.note(Piece(0, b"data: a\n\n", tokens))
    sent = msgspec.msgpack.encode(delivered.continuation(0.1, 1) if pieces else Continuation([], 0, 0.1))
    got = msgspec.msgpack.decode(sent, type=Continuation)
    # An earlier ingress replica leaves the sizes out. Then each token counts as an output.
    earlier = msgspec.msgpack.decode(
        msgspec.msgpack.encode(msgspec.msgpack.decode(sent)[:5]), type=Continuation
    )

    for sequence in range(len(got.tokens)):
        outputs = [ids for tokens in pieces for number, ids in tokens if number == sequence and ids]
        assert got.outputs(sequence) == outputs
        assert got.tokens[sequence] == [token for ids in outputs for token in ids]
        assert earlier.outputs(sequence) == [[token] for ids in outputs for token in ids]
