from typing import Any

import pytest

from serve_app.ingress.cold_start_progress import UNKNOWN
from serve_app.ingress.cold_start_progress import ColdStartProgress as Progress
from serve_app.ingress.cold_start_progress import cold_start_progress as progress

NOW = 1_700_000_000.0
PHASES_S = {"process": 2.0, "imports": 10.0, "weights_and_kv_cache": 20.0, "warm_up": 3.0}
COLD_START_S = 35.0


def status(**more: Any) -> dict[str, Any]:
    document = {"ready": 0, "starting": 0, "pending": 0, "cold_start_s": COLD_START_S, "phases_s": PHASES_S}
    return {**document, **more}


def unmeasured(**more: Any) -> dict[str, Any]:
    return status(cold_start_s=None, phases_s={}, **more)


def phase(name: str, ago_s: float) -> dict[str, Any]:
    return {"phase": name, "since": NOW - ago_s, "durations_s": {}}


@pytest.mark.parametrize(
    ("name", "ago_s", "eta_s"),
    [
        ("imports", 0.0, 33.0),
        ("imports", 4.0, 29.0),
        ("weights_and_kv_cache", 15.0, 8.0),
        ("warm_up", 1.0, 2.0),
        # It takes longer than it usually does: from here on, only what comes after it is known.
        ("weights_and_kv_cache", 500.0, 3.0),
        ("warm_up", 500.0, 0.0),
    ],
)
def test_what_remains_is_the_rest_of_the_phase_and_all_later_ones(
    name: str, ago_s: float, eta_s: float
) -> None:
    assert progress(status(starting=1), {"a": phase(name, ago_s)}, NOW) == Progress(name, eta_s)


@pytest.mark.parametrize(("warm_node", "eta_s"), [(True, 3.0), (False, 20.0)])
def test_a_replica_takes_as_long_as_others_on_its_kind_of_node(warm_node: bool, eta_s: float) -> None:
    kinds = {"warm_node_phases_s": {"weights_and_kv_cache": 3.0}, "cold_node_phases_s": PHASES_S}
    document = {**phase("weights_and_kv_cache", 0.0), "warm_node": warm_node}
    expected = eta_s if warm_node else eta_s + 3.0  # and the warm-up

    assert progress(status(starting=1, **kinds), {"a": document}, NOW).eta_s == expected


def test_a_clock_ahead_of_the_replicas_makes_no_phase_longer_than_it_would_be() -> None:
    soonest = progress(status(starting=1), {"a": phase("imports", -1.0)}, NOW)

    assert soonest.eta_s == pytest.approx(34.0)


def test_of_several_replicas_the_nearest_counts() -> None:
    phases = {"a": phase("imports", 1.0), "b": phase("warm_up", 2.0), "c": phase("imports", 9.0)}

    assert progress(status(starting=3), phases, NOW) == Progress("warm_up", 1.0)


def test_what_killed_replicas_left_behind_is_not_taken_for_a_start() -> None:
    phases = {"killed": phase("warm_up", 7200.0), "b": phase("imports", 1.0)}

    assert progress(status(starting=1), phases, NOW) == Progress("imports", 32.0)
    assert progress(status(), phases, NOW) == Progress("requested", COLD_START_S)


def test_a_replica_that_has_just_begun_is_believed_before_the_policy_has_seen_it() -> None:
    assert progress(status(pending=1), {"a": phase("imports", 0.5)}, NOW) == Progress("imports", 32.5)


def test_a_pending_replica_is_not_told_by_the_phase_of_one_that_was_killed() -> None:
    """For 600 s clients were told that a replica warmed up, which had no slot to run."""
    phases = {"killed": phase("warm_up", 700.0)}

    assert progress(status(pending=1, pending_s=600), phases, NOW) == Progress(
        "pending_capacity", COLD_START_S
    )
    assert progress(status(pending=1, pending_s=600), {"a": phase("imports", 2.0)}, NOW).phase == "imports"


@pytest.mark.parametrize("over", ["ready", "failed", "draining"])
def test_a_replica_that_is_not_starting_says_nothing_of_the_next(over: str) -> None:
    assert progress(status(starting=1), {"a": phase(over, 60.0)}, NOW) == Progress("process", COLD_START_S)


def test_a_replica_that_is_ready_needs_ray_only() -> None:
    assert progress(status(starting=1), {"a": phase("ready", 0.5)}, NOW) == Progress("ready", 0.0)


@pytest.mark.parametrize(
    ("counts", "name"),
    [
        ({}, "requested"),
        ({"starting": 1}, "process"),
        ({"pending": 1}, "pending_capacity"),
        ({"pending": 1, "starting": 1}, "pending_capacity"),
    ],
)
def test_before_the_first_phase_a_whole_cold_start_is_ahead(counts: dict[str, int], name: str) -> None:
    assert progress(status(**counts), {}, NOW) == Progress(name, COLD_START_S)
    assert progress(unmeasured(**counts), {}, NOW) == Progress(name, None)


def test_when_a_full_replica_has_room_nobody_knows() -> None:
    assert progress(status(ready=2), {"a": phase("ready", 60.0)}, NOW) == Progress("busy", None)


def test_beside_full_replicas_one_that_starts_is_what_is_waited_for() -> None:
    assert progress(status(ready=2, starting=1), {"a": phase("warm_up", 1.0)}, NOW) == Progress(
        "warm_up", 2.0
    )


def test_a_phase_that_was_never_measured_has_no_eta() -> None:
    assert progress(unmeasured(starting=1), {"a": phase("imports", 1.0)}, NOW) == Progress("imports", None)


def test_a_measured_replica_is_preferred_to_one_nothing_is_known_of() -> None:
    phases = {"a": phase("download", 1.0), "b": phase("imports", 5.0)}

    assert progress(status(starting=2), phases, NOW) == Progress("imports", 28.0)


def test_without_a_word_from_the_policy_the_phase_is_that_of_the_newest_replica() -> None:
    assert progress(None, {}, NOW) == UNKNOWN
    phases = {"a": phase("imports", 5.0), "b": phase("warm_up", 1.0), "c": phase("ready", 0.5)}
    assert progress(None, phases, NOW) == Progress("warm_up", None)
