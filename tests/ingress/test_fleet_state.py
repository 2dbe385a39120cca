from typing import Any

from serve_app.api.health import ModelReadiness, Readiness
from serve_app.cluster.bounded_call import Answer, BoundedCall
from serve_app.ingress.cold_start_progress import StoredState
from serve_app.ingress.fleet_state import FleetState, hour_price
from serve_app.settings.ledger import LedgerSettings
from serve_app.settings.tree import AppSettings

PHASES = {"process": 1.0, "imports": 2.0, "warm_up": 3.0}


class FakePolicy:
    """Documents of the policy, and how often records were read."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.read = 0

    async def decisions(self) -> list[dict[str, Any]]:
        self.read += 1
        return list(self.records)

    def knobs(self) -> dict[str, Any]:
        return {"models": {}, "rejected": ""}


class FakeObserver:
    """A model that is up, and empty metrics."""

    def __init__(self) -> None:
        self.scrapes = 0

    async def readiness(self) -> Readiness:
        return Readiness([ModelReadiness("tide", "up", replicas=1)])

    async def metrics(self) -> bytes:
        self.scrapes += 1
        return b""


class Fleet:
    """A state, and the documents that it reads."""

    def __init__(self) -> None:
        self.now = 1000.0
        prices = {"gpu_hour_prices": {"A100": 2.0}}
        models = [{"name": "tide", "tensor_parallel_size": 4}]
        self.settings = AppSettings.model_validate({"models": models, "ledger": prices})
        self.policy, self.observer = FakePolicy(), FakeObserver()
        self.stored = BoundedCall("documents", StoredState, 0.5)
        self.tell()
        view: Any = self.policy
        self.state = FleetState(self.settings, self.observer, view, self.stored, lambda: self.now)

    def tell(self, seq: int = 0, phases: dict[str, Any] | None = None, **scaling: Any) -> None:
        counts = {"ready": 1, "target": 2, "wanted": 2, "starting": 0, "pending": 0}
        model = {**counts, "phases_s": PHASES, **scaling}
        status = {"at": self.now, "decisions_seq": seq, "models": {"Engine-tide": model}}
        self.stored.last = Answer(StoredState(status, {"Engine-tide": phases or {}}), self.now)


def started(phase: str, since: float) -> dict[str, Any]:
    return {"phase": phase, "since": since, "durations_s": {"process": 1.2}}


async def test_a_start_has_its_phases_and_its_eta() -> None:
    fleet = Fleet()
    fleet.tell(phases={"r1": started("imports", 999.0), "old": started("process", 10.0)}, starting=1)

    (start,) = (await fleet.state.parts(True))["models"]["tide"]["starts"]

    assert start == {
        "replica": "r1", "phase": "imports", "phase_s": 1.0, "durations_s": {"process": 1.2},
        "expected_s": PHASES, "eta_s": 4.0,
    }  # fmt: skip


def shown(seq: int, model: str = "tide", kind: str = "change") -> dict[str, Any]:
    return {"seq": seq, "at": 10.0 * seq, "model": model, "kind": kind}


def record(seq: int, model: str = "tide", kind: str = "change") -> dict[str, Any]:
    return {**shown(seq, model, kind), "signals": {"rps": 1.0}, "ages_s": {}}


async def test_records_are_read_only_when_there_are_new_ones() -> None:
    fleet = Fleet()
    fleet.policy.records = [record(1)]
    fleet.tell(seq=1)
    assert (await fleet.state.parts(True))["decisions"] == [shown(1)]
    assert (await fleet.state.parts(True))["decisions"] == []
    assert fleet.policy.read == 1
    fleet.policy.records.append(record(2))
    fleet.tell(seq=2)
    assert (await fleet.state.parts(True))["decisions"] == [shown(2)]
    assert [record["seq"] for record in fleet.state.everything()["decisions"]] == [1, 2]


async def test_a_new_listener_gets_the_last_changes_and_each_newest_record() -> None:
    fleet = Fleet()
    beats = [record(seq, kind="heartbeat") for seq in range(51, 61)]
    fleet.policy.records = [record(1, "old", "heartbeat"), *map(record, range(2, 51)), *beats]
    fleet.tell(seq=60)
    await fleet.state.parts(True)

    found = [(each["seq"], each["model"]) for each in fleet.state.everything()["decisions"]]
    assert found == [(1, "old"), *((seq, "tide") for seq in range(21, 51)), (60, "tide")]


async def test_a_new_listener_gets_at_most_60_samples_with_the_newest() -> None:
    fleet = Fleet()
    for _ in range(125):
        fleet.now += 5.0
        last = (await fleet.state.parts(True))["samples"]

    samples = fleet.state.everything()["samples"]
    assert (len(samples), samples[-1:]) == (42, last)


async def test_metrics_are_read_every_5_s_for_listeners_and_every_15_s_without() -> None:
    fleet = Fleet()
    seen = []
    for watched in (False, True):
        for _ in range(30):
            fleet.now += 1.0
            await fleet.state.parts(watched)
        seen.append(fleet.observer.scrapes)

    assert seen == [2, 8]


async def test_a_silent_policy_is_told_with_its_age() -> None:
    fleet = Fleet()
    assert (await fleet.state.parts(True))["policy"] == {"reports": True, "silent_s": None, "errors": 0}
    fleet.now += 20.0
    assert (await fleet.state.parts(True))["policy"]["silent_s"] == 20


def test_a_replica_costs_what_its_devices_cost() -> None:
    (model,) = Fleet().settings.models

    assert hour_price(model, LedgerSettings(gpu_hour_prices={"A100": 2.5})) == 10.0
    assert hour_price(model, LedgerSettings()) is None
