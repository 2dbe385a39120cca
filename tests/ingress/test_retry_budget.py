from types import SimpleNamespace
from typing import Any

import pytest

from serve_app.ingress import retry_budget
from serve_app.ingress.engine_channel import NeverBegunError
from serve_app.ingress.replica_choice import Replica
from serve_app.ingress.retry_budget import EngineFailedError, RetryBudget, raise_if_lost

FAILED, KILLED = EngineFailedError("by itself"), ConnectionError("killed")


def after(*errors: ConnectionError, answered: bool = True, **replica: Any) -> RetryBudget:
    budget = RetryBudget()
    budget.answered = answered
    for error in errors:
        budget.charge(error, Replica("a", "a:1", "t", **replica), sent_at=0.0)
    return budget


@pytest.mark.parametrize(
    ("errors", "spent"),
    [
        ([FAILED], False),
        ([FAILED] * 2, True),
        ([KILLED] * 3, False),  # a rack goes down, process after process
        ([KILLED] * 4, True),
        ([FAILED, KILLED], False),
        ([FAILED, KILLED, KILLED], True),
        ([NeverBegunError("dead already")] * 9, False),
    ],
)
def test_killed_engines_cost_less_than_failed_ones(errors: list[ConnectionError], spent: bool) -> None:
    assert after(*errors).is_spent == spent


def test_losses_without_an_answer_cost_as_failures_do() -> None:
    assert after(KILLED, KILLED, answered=False).is_spent
    assert not after(KILLED, KILLED).is_spent


@pytest.mark.parametrize(("there_s", "cost"), [(4.9, 0), (5.1, 1), (5.6, 2)])
def test_loss_of_a_hung_engine_costs_by_certainty(
    there_s: float, cost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heartbeat was due within half a second of the moment from which the engine stands still."""
    monkeypatch.setattr(retry_budget, "time", SimpleNamespace(perf_counter=lambda: there_s))
    assert after(KILLED, still_s=5.0).spent == cost


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
    assert type(caught.value) is ConnectionError
