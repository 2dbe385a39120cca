"""Baselines by specification, and what must hold of every one of them."""

import numpy as np
import pytest

from benchmarks.peers.policies import PUBLISHED
from replay.policies import Autoscaler, Engines, SpecError, make, names
from tests.benchmarks.peers.build import A100_7B, drive, sample, spread

ALL = (*PUBLISHED, "kpa", "static:12")


def build(spec: str) -> Autoscaler:
    return make(spec, Engines(A100_7B))


@pytest.mark.parametrize("spec", ALL)
def test_a_policys_name_is_its_specification(spec: str) -> None:
    assert build(spec).name == spec
    assert build(build(spec).name).name == spec


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("ray:2", "ray"),
        (" ray:5.0 ", "ray:5"),
        ("wva:1", "wva"),
        ("dynamo:interval=180,itl=0.02", "dynamo:itl=0.02"),
        ("hpa: ongoing = 4", "hpa:ongoing=4"),
        ("static:007", "static:7"),
        ("hpa", "hpa:ongoing=10"),
        ("apa", "apa:5"),
    ],
)
def test_names_are_canonical(spec: str, name: str) -> None:
    assert build(spec).name == name


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (
            "rays",
            r"'rays'.*no such baseline; there are ray\[:TARGET\], kpa.*:waiting=TARGET.*static:REPLICAS",
        ),
        ("", "no such baseline"),
        ("ray:x", "'x': must be a number above 0"),
        ("ray:0", "above 0"),
        ("ray:nan", "above 0"),
        ("ray:inf", "above 0"),
        ("ray:2,3", "'3' is no setting"),
        ("ray:target=2", "'target=2' is no setting"),
        ("hpa:1", "'1' is no setting"),
        ("hpa:waiting=1,ongoing=2", r"one setting is enough; written hpa\[:waiting=TARGET"),
        ("wva:3", "3 must be a whole number from 1 to 2"),
        ("static", "a whole number is needed"),
        ("static:1.5", "1.5 must be a whole number"),
        ("dynamo:itl=-1", "itl = '-1': must be a number above 0"),
    ],
)
def test_wrong_specification_is_explained(spec: str, problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        build(spec)


def test_every_baseline_is_named_and_can_be_made() -> None:
    assert {spec.partition(":")[0] for spec in ALL} == set(names())


@pytest.mark.parametrize("spec", ALL)
def test_no_fleet_and_no_traffic_make_it_stumble(spec: str) -> None:
    policy = build(spec)
    fleets = [
        {"running": (), "target": 0},
        {"running": (), "target": 0, "held": 30},
        {"running": (), "target": 4, "held": 30},
        {"running": spread(30, 3), "target": 4, "waiting": spread(90, 3), "kv_usage": [0.0, 0.9, 1.0]},
        {"running": spread(0, 3), "target": 3},
        {"running": spread(0, 3), "target": 1},
    ]
    at = 0.0
    with np.errstate(all="raise"):
        for turn in range(600):
            count = turn * (1.0 if turn % 200 > 100 else 0.0)
            totals = {"arrivals": count, "arrived_tokens": 9 * count, "finished": count}
            wish = policy.decide(sample(at, **fleets[turn // 7 % len(fleets)], **totals))
            assert isinstance(wish, int)
            assert 0 <= wish < 10_000
            at += policy.interval_s


@pytest.mark.parametrize("spec", ALL)
def test_a_steady_load_settles(spec: str) -> None:
    changes = drive(build(spec), 3600.0, 40, target=2)
    late = [change for change in changes if change[0] > 1800.0]
    assert late == []
