from typing import Any

from serve_app.controller.decision_records import KEPT, Journal
from serve_app.policy.decide import Decision, Term
from tests.policy.build import NOW


def decision(target: int, wanted: int | None = None, binding: str = "queue") -> Decision:
    return Decision(
        target=target,
        wanted=target if wanted is None else wanted,
        binding=binding,
        reason="because",
        counterfactual="otherwise",
        terms=(Term(binding, target, "why"),),
        signals={"held_requests": 3.0},
        ages_s={"e0": 0.5},
    )


def note(
    journal: Journal, after_s: float, made: Decision, old: int, mode: str = "act", name: str = "Engine-a"
) -> dict[str, Any] | None:
    return journal.note(name, "a", mode, old, old, made, NOW + after_s)


def test_change_of_the_target_is_recorded_with_its_reasons() -> None:
    journal = Journal()

    record = note(journal, 0, decision(3), old=0)

    assert record is not None
    assert (record["kind"], record["old_target"], record["new_target"], record["seq"]) == ("change", 0, 3, 1)
    assert record["terms"][0]["name"] == "queue"
    assert record["signals"] == {"held_requests": 3.0}
    assert journal.records() == [record]


def test_while_nothing_changes_there_is_a_record_every_ten_seconds() -> None:
    journal = Journal()

    kinds = [note(journal, second, decision(2), old=2) for second in range(31)]

    assert [second for second, record in enumerate(kinds) if record] == [0, 10, 20, 30]
    assert {record["kind"] for record in kinds if record} == {"heartbeat"}


def test_heartbeats_of_many_models_leave_room_for_changes() -> None:
    journal = Journal()
    change = note(journal, 0, decision(3), old=0, name="Engine-0")

    for second in range(200):
        for model in range(100):
            note(journal, second, decision(2), old=2, name=f"Engine-{model}")

    assert change in journal.records()


def test_changes_of_wanted_or_binding_are_recorded_once_a_second() -> None:
    journal = Journal()
    note(journal, 0, decision(2), old=2)

    assert note(journal, 0.5, decision(2, wanted=1), old=2) is None
    assert note(journal, 1.0, decision(2, wanted=1), old=2) is not None
    assert note(journal, 1.5, decision(2, wanted=1, binding="batch_limit"), old=2) is None
    assert note(journal, 2.0, decision(2, wanted=1, binding="batch_limit"), old=2) is not None
    assert note(journal, 4.0, decision(2, wanted=1, binding="batch_limit"), old=2) is None


def test_changes_are_recorded_however_fast_they_come() -> None:
    journal = Journal()

    assert all(note(journal, 0.1 * n, decision(n + 1), old=n) for n in range(5))


def test_in_advise_a_change_of_wanted_is_a_change() -> None:
    journal = Journal()
    first = note(journal, 0, decision(0, wanted=0), old=0, mode="advise")
    second = note(journal, 2, decision(0, wanted=3), old=0, mode="advise")

    assert first is not None
    assert second is not None
    assert (first["kind"], second["kind"], second["wanted"]) == ("heartbeat", "change", 3)


def test_deployments_do_not_share_their_heartbeats() -> None:
    journal = Journal()
    note(journal, 0, decision(1), old=1)

    assert note(journal, 1, decision(1), old=1, name="Engine-b") is not None


def test_a_clock_set_back_does_not_silence_the_journal() -> None:
    journal = Journal()
    note(journal, 0, decision(1), old=1)

    assert note(journal, -3600, decision(1), old=1) is not None


def test_the_ring_keeps_the_newest() -> None:
    journal = Journal()
    for n in range(KEPT + 2):
        note(journal, n, decision(n + 1), old=n)

    assert [record["seq"] for record in journal.records()] == list(range(3, KEPT + 3))
    assert journal.seq == KEPT + 2


def test_earlier_records_come_before_own_records() -> None:
    journal = Journal()
    note(journal, 0, decision(2), old=2)

    journal.load([{"seq": 40}, {"seq": 41}])

    assert [record["seq"] for record in journal.records()] == [40, 41, 42]
    assert journal.seq == 42
