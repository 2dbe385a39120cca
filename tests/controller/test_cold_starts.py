from typing import Any

from serve_app.controller.cold_starts import ColdStarts


def document(phase: str, since: float = 0.0, **durations_s: float) -> dict[str, Any]:
    about = {"warm_node": False, "identity": ""}
    return {"phase": phase, "since": since, "durations_s": durations_s, **about}


def test_ready_start_counts_exactly_once() -> None:
    loading = {"a": document("weights_and_kv_cache", 1, process=2.0, imports=8.0)}
    ready = {"a": document("ready", 5, process=2.0, imports=8.0, weights_and_kv_cache=30.0)}

    starts = ColdStarts().add(loading)
    assert starts.total_s is None

    starts = starts.add(ready)
    assert starts.total_s == 40.0
    assert starts.add(ready) is starts


def test_one_slow_download_does_not_move_the_typical_start_up() -> None:
    seconds = [40.0, 41.0, 400.0, 39.0, 42.0]

    starts = ColdStarts().add(
        {f"r{n}": document("ready", n, imports=10.0, weights=s) for n, s in enumerate(seconds)}
    )

    assert starts.total_s == 51.0
    assert starts.phases_s() == {"imports": 10.0, "weights": 41.0}


def test_last_five_starts_are_kept_in_order() -> None:
    phases = {f"r{n}": document("ready", 10 - n, weights=float(n)) for n in range(7)}

    starts = ColdStarts().add(phases)

    assert [start.replica for start in starts.startups] == ["r4", "r3", "r2", "r1", "r0"]
    assert starts.add({"new": document("ready", 99, weights=1.0)}).startups[-1][0] == "new"


def test_phases_keep_the_order_replicas_go_through_them() -> None:
    starts = ColdStarts().add(
        {
            "a": document("ready", 1, process=1.0, imports=2.0, warm_up=3.0),
            "b": document("ready", 2, process=1.0, imports=4.0, warm_up=3.0, data_plane=0.1),
        }
    )

    assert list(starts.phases_s()) == ["process", "imports", "warm_up", "data_plane"]
    assert starts.phases_s()["imports"] == 3.0
    assert starts.phases_s()["data_plane"] == 0.05


def test_starts_on_warm_and_cold_nodes_are_separate() -> None:
    kinds = {"warm": True, "cold": False}
    ready = {
        f"{kind}{n}": {**document("ready", n, weights=30.0 if kind == "cold" else 3.0), "warm_node": warm}
        for kind, warm in kinds.items()
        for n in range(7)
    }

    starts = ColdStarts().add(ready)

    assert (starts.on(warm_node=True).total_s, starts.on(warm_node=False).total_s) == (3.0, 30.0)
    assert starts.on(warm_node=True).phases_s() == {"weights": 3.0}
    assert [len(starts.on(warm_node=warm).startups) for warm in kinds.values()] == [5, 5]


def test_starts_of_the_newest_four_identities_are_kept() -> None:
    starts = ColdStarts()
    for kind in range(6):
        for n in range(7):
            ready = {**document("ready", 10 * kind + n, weights=float(kind)), "identity": f"kind {kind}"}
            starts = starts.add({f"r{kind}{n}": ready})

    assert [starts.of(f"kind {kind}").total_s for kind in range(6)] == [None, None, 2.0, 3.0, 4.0, 5.0]
    assert len(starts.startups) == 4 * 5
