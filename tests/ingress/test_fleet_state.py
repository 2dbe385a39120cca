import asyncio
import gzip
import json
import random
import zlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, count
from typing import Any

import pytest
from starlette.requests import Request

from serve_app.api.fleet_events import FleetEvents
from serve_app.api.health import ModelReadiness, Readiness
from serve_app.cluster.bounded_call import Answer, BoundedCall
from serve_app.controller import serve_policy
from serve_app.ingress import fleet_state
from serve_app.ingress.cold_start_progress import StoredState
from serve_app.ingress.fleet_state import FleetState
from serve_app.settings.caller import LANES
from serve_app.settings.knobs import Knobs
from serve_app.settings.tree import AppSettings
from serve_app.telemetry.replica_metrics import INTER_TOKEN_S, TTFT_S
from serve_app.ui import assets
from tests.policy.fake_application import KNOBS, Clock, FakeApplication
from tests.stub_engine import LIMIT_S

PHASES = {"process": 1.0, "imports": 2.0, "warm_up": 3.0}


class FakePolicy:
    """Documents of the policy, and how often records were read."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.knobs_in_force: dict[str, Any] = {}
        self.read = 0

    async def decisions(self) -> list[dict[str, Any]]:
        self.read += 1
        return list(self.records)

    def knobs(self) -> dict[str, Any]:
        return {"models": self.knobs_in_force, "rejected": ""}


class FakeObserver:
    """Models that are up, and metrics that a test puts there."""

    def __init__(self, *models: str) -> None:
        self.models = models
        self.metrics_text = ""
        self.out: dict[str, str] = {}
        self.scrapes = 0

    async def readiness(self) -> Readiness:
        return Readiness(
            [ModelReadiness(model, "up", replicas=1, replicas_out=self.out) for model in self.models]
        )

    async def metrics(self) -> bytes:
        self.scrapes += 1
        return self.metrics_text.encode()


class Fleet:
    """A state, and the documents that it reads."""

    def __init__(self, models: int = 1, prices: Mapping[str, float] = {"A100": 2.0}) -> None:
        self.now = 1000.0
        ledger = {"gpu_hour_prices": prices}
        names = ["tide", *(f"tide-{number}" for number in range(1, models))]
        given = [{"name": name, "tensor_parallel_size": 2, "pipeline_parallel_size": 2} for name in names]
        self.settings = AppSettings.model_validate({"models": given, "ledger": ledger})
        self.policy, self.observer = FakePolicy(), FakeObserver(*names)
        self.stored = BoundedCall("documents", StoredState, 0.5)
        self.tell()
        view: Any = self.policy
        self.state = FleetState(self.settings, self.observer, view, self.stored, lambda: self.now)

    def tell(self, seq: int = 0, phases: dict[str, Any] | None = None, **scaling: Any) -> None:
        counts = {"ready": 1, "target": 2, "wanted": 2, "starting": 0, "pending": 0}
        model = {**counts, "phases_s": PHASES, "warm_node_phases_s": {}, "cold_node_phases_s": {}, **scaling}
        status = {"at": self.now, "decisions_seq": seq, "models": {"Engine-tide": model}}
        self.stored.last = Answer(StoredState(status, {"Engine-tide": phases or {}}), self.now)


def started(phase: str, since: float) -> dict[str, Any]:
    return {"phase": phase, "since": since, "durations_s": {"process": 1.2}, "warm_node": False}


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
    assert [record["seq"] for record in fleet.state.history()["decisions"]] == [1, 2]


async def test_a_new_listener_gets_the_last_changes_and_each_newest_record() -> None:
    fleet = Fleet()
    beats = [record(seq, kind="heartbeat") for seq in range(51, 61)]
    fleet.policy.records = [record(1, "old", "heartbeat"), *map(record, range(2, 51)), *beats]
    fleet.tell(seq=60)
    await fleet.state.parts(True)

    found = [(each["seq"], each["model"]) for each in fleet.state.history()["decisions"]]
    assert found == [(1, "old"), *((seq, "tide") for seq in range(21, 51)), (60, "tide")]


@pytest.mark.parametrize(("models", "count"), [(1, 125), (6, 125), (20, 42)])
async def test_a_new_listener_gets_fewer_samples_of_more_models(models: int, count: int) -> None:
    fleet = Fleet(models)
    for _ in range(125):
        fleet.now += 5.0
        last = (await fleet.state.parts(True))["samples"]

    samples = fleet.state.history()["samples"]
    assert (len(samples), samples[-1:]) == (count, last)


async def test_metrics_are_read_every_5_s_for_listeners_and_every_15_s_without() -> None:
    fleet = Fleet()
    seen = []
    for watched in (False, True):
        for _ in range(30):
            fleet.now += 1.0
            await fleet.state.parts(watched)
        seen.append(fleet.observer.scrapes)

    assert seen == [2, 8]


async def test_costly_samples_come_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_state, "MOST_SHARE", 1e-9)
    fleet = Fleet()
    for _ in range(60):
        fleet.now += 1.0
        await fleet.state.parts(True)

    assert fleet.observer.scrapes == 1


async def test_samples_count_lost_replicas() -> None:
    fleet = Fleet()
    fleet.observer.out = {"r1": "does not answer"}
    (sample,) = (await fleet.state.parts(True))["samples"]
    counted = {name: sample["models"]["tide"][name] for name in ("ready", "lost", "target")}
    assert counted == {"ready": 1, "lost": 1, "target": 2}


async def test_a_silent_policy_is_told_with_its_age() -> None:
    fleet = Fleet()
    assert (await fleet.state.parts(True))["policy"] == {"reports": True, "silent_s": None, "errors": 0}
    fleet.now += 20.0
    assert (await fleet.state.parts(True))["policy"]["silent_s"] == 20


def test_a_replica_costs_what_its_devices_cost() -> None:
    assert Fleet().state.history()["prices"] == {"tide": 8.0}
    assert Fleet(prices={}).state.history()["prices"] == {"tide": None}


def series_of(model: str, chance: random.Random, seen: dict[tuple[str, int], int]) -> Iterator[str]:
    """The metrics of a replica with a load that changes from call to call. `seen` are its counters."""

    def buckets(name: str, bounds: Iterable[float]) -> Iterator[str]:
        ends = [*map(str, bounds), "+Inf"]
        for index in range(len(ends)):
            seen[name, index] = seen.get((name, index), 0) + max(0, int(chance.gauss(5, 9)))
        for end, total in zip(ends, accumulate(seen[name, i] for i in range(len(ends))), strict=True):
            yield f'llm_{name}_seconds_bucket{{le="{end}",model="{model}"}} {total}'

    yield from buckets("user_ttft", TTFT_S[4:20:3])
    yield from buckets("inter_token", INTER_TOKEN_S[4:20:3])
    for index, lane in enumerate(LANES):
        for kind in ("completion", "prompt"):
            seen[kind, index] = seen.get((kind, index), 0) + chance.randrange(90_000)
            yield f'llm_{kind}_tokens_total{{lane="{lane}",model="{model}"}} {seen[kind, index]}'
        for kind in ("running", "waiting"):
            yield f'llm_{kind}_requests{{lane="{lane}",model="{model}"}} {chance.randrange(64)}'
    for kind, most in (("queries", 90_000), ("hits", 50_000)):
        seen[kind, 0] = seen.get((kind, 0), 0) + chance.randrange(most)
        yield f'llm_prefix_cache_{kind}_total{{model="{model}"}} {seen[kind, 0]}'


def records_of(models: list[str], clock: Clock) -> list[dict[str, Any]]:
    """The records of a policy that sees a rising load of each model."""
    app = FakeApplication(clock, dict.fromkeys(models, KNOBS), targets=dict.fromkeys(models, 1))
    for turn in range(5):
        requests = 10.0 * turn**2
        arrivals = {"arrivals_total": requests, "arrived_bytes_total": 2e3 * requests}
        app.reports(ongoing=30.0, **dict.fromkeys(models, arrivals))
        for model in models:
            app.engine(model, running_requests=4, running_tokens=4e3, waiting_requests=7 * turn)
        app.tick()
    return [record for model in models for record in app.records(model)]


def asked(**headers: str) -> Request:
    named = [(name.encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": named, "state": {"head": False}})


async def test_listeners_that_come_at_once_share_samples_and_records(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, first_listens = Fleet(), asyncio.Event()
    readiness, calls = fleet.observer.readiness, count()

    async def slow_readiness() -> Readiness:
        number = next(calls)
        await asyncio.sleep(0)
        if number:
            await first_listens.wait()
        return await readiness()

    monkeypatch.setattr(fleet.observer, "readiness", slow_readiness)
    events = FleetEvents(fleet.state, None, lambda: False)
    one, two = (asyncio.create_task(events.stream(asked(), None, {})) for _ in range(2))
    reply: Any = await one
    assert b'"decisions":[]' in await anext(reply.body_iterator)
    fleet.policy.records = [record(1)]
    fleet.tell(seq=1)
    first_listens.set()
    await two

    async with asyncio.timeout(LIMIT_S):
        assert b'"seq":1' in await anext(reply.body_iterator)
    assert fleet.observer.scrapes == 1


@pytest.mark.parametrize(("models", "samples"), [(20, 60), (100, 12)])
async def test_page_and_first_event_of_busy_models_are_small(
    models: int, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(serve_policy, "SteadyTime", lambda: clock.time)
    fleet, chance = Fleet(models), random.Random(1)
    names = [model.name for model in fleet.settings.models]
    counters: dict[str, dict[tuple[str, int], int]] = {name: {} for name in names}
    fleet.policy.records = records_of(names, clock)
    fleet.policy.knobs_in_force = dict.fromkeys(names, KNOBS.model_dump(mode="json"))
    fleet.tell(seq=1)
    for _ in range(60):
        fleet.now += 15.0
        lines = (line for name in names for line in series_of(name, chance, counters[name]))
        fleet.observer.metrics_text = "\n".join(lines)
        await fleet.state.parts(True)

    request = asked(**{"accept-encoding": "gzip"})
    more = {"knob_schemas": Knobs.model_json_schema()}
    reply: Any = await FleetEvents(fleet.state, None, lambda: False).stream(request, None, more)
    first = await anext(reply.body_iterator)

    event = json.loads(zlib.decompressobj(31).decompress(first).removeprefix(b"data: "))
    assert len(event["samples"]) == samples
    assert len(first) <= 100_000
    assert len(event["decisions"]) >= 30
    assert event["samples"][-1]["models"]["tide-19"].keys() >= {"ttft_p95_s", "itl_p95_s", "cached_share"}
    page = (assets.script(), assets.style(), assets.template().encode())
    assert len(first) + sum(len(gzip.compress(file)) for file in page) < 150_000
