import json

import pytest

from serve_app.policy.explanation import Clamp, Explanation, Record, Term, are


def record() -> Record:
    return Record(
        seq=7,
        at=1_700_000_000.123,
        deployment="Engine-tide",
        model="tide",
        kind="change",
        mode="act",
        old_target=0,
        new_target=3,
        wanted=3,
        ready=0,
        explanation=Explanation(
            binding="queue",
            reason="queue: 24 requests are waiting",
            counterfactual="the target rises at 25 waiting requests or above 9 requests/s",
            terms=(Term("queue", 3, "24 requests are waiting"),),
            clamps=(Clamp("bounds", "max_replicas = 3, and 4 replicas are needed"),),
            signals={"arrivals_30s_rps": 1 / 3, "held_requests": 24.0, "warm_node": True},
            ages_s={"i0": 0.123456},
            notes=("a note",),
        ),
    )


def test_a_record_is_plain_json_with_every_field_by_its_name() -> None:
    plain = json.loads(json.dumps(record().document(), allow_nan=False))

    assert plain["seq"] == 7
    assert plain["terms"] == [{"name": "queue", "replicas": 3, "why": "24 requests are waiting"}]
    assert plain["clamps"] == [{"name": "bounds", "effect": "max_replicas = 3, and 4 replicas are needed"}]
    assert plain["notes"] == ["a note"]
    assert set(plain) == {*Record.__slots__, *Explanation.__slots__} - {"explanation"}


def test_numbers_are_rounded_to_four_digits() -> None:
    plain = record().document()

    assert plain["signals"] == {"arrivals_30s_rps": 0.3333, "held_requests": 24.0, "warm_node": 1.0}
    assert plain["ages_s"] == {"i0": 0.1235}


def test_every_signal_is_a_number_in_json() -> None:
    """Not `true`: a record's signals are read as numbers, as the gauges are."""
    assert json.dumps(record().document()["signals"]["warm_node"]) == "1.0"


@pytest.mark.parametrize(
    ("number", "words"),
    [(0, "no replica is"), (0.4, "no replica is"), (1, "1 replica is"), (24.0, "24 replicas are")],
)
def test_numbers_have_a_noun_and_a_verb_that_agree(number: float, words: str) -> None:
    assert are(number, "replica") == words
