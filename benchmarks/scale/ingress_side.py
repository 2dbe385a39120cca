"""One ingress replica's side: heartbeats, picks, `/ready`, `/metrics`, the page and quotas."""

import asyncio
import gc
import multiprocessing
import random
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from ray.serve._private.common import ReplicaState

from benchmarks.scale.fake_fleet import KV_CACHE_TOKENS, STEP_TOKENS, raise_open_files, serve
from benchmarks.scale.fake_store import FakeStore
from benchmarks.scale.policy_side import APP, PER_NODE, Fleet
from serve_app.api.fleet_events import _event, _pack
from serve_app.api.prompt_prefix import BLOCK_BYTES, PromptPrefix
from serve_app.api.quotas import KeyDemand
from serve_app.cluster.bounded_call import BoundedCall
from serve_app.cluster.serve_status import ServeStatus
from serve_app.ingress.cold_start_progress import state_reader
from serve_app.ingress.engine_channel import EngineChannels
from serve_app.ingress.fleet_state import FleetState
from serve_app.ingress.policy_view import PolicyView
from serve_app.ingress.quota_exchange import QuotaReports
from serve_app.ingress.readiness import ServeObserver
from serve_app.ingress.replica import Reservation
from serve_app.ingress.replica_heartbeats import Heartbeats
from serve_app.ingress.replica_set import ReplicaSet
from serve_app.settings.knobs import Knobs, LiveKnobs
from serve_app.settings.tree import AppSettings
from serve_app.telemetry.exposition import cluster_exposition
from serve_app.telemetry.replica_metrics import E2E_S, INTER_TOKEN_S, TTFT_S
from serve_app.wire.data_plane import BEAT_S

_IDLE_S = 4.0
_ROUNDS, _PICKS = 7, 1500
_SAMPLES = 60
_KEYS = 100
_HISTOGRAMS = {
    "user_ttft": TTFT_S,
    "ttft": TTFT_S,
    "queue": TTFT_S,
    "inter_token": INTER_TOKEN_S,
    "e2e": E2E_S,
    "step": E2E_S,
}


async def measure(store: FakeStore, fleet: Fleet, ingresses: int) -> dict[str, float]:
    """Return the figures of one of so many ingress replicas."""
    raise_open_files()
    control, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=serve, args=(there,), daemon=True)
    process.start()
    address = f"127.0.0.1:{control.recv()}"
    sets, channels = {name: ReplicaSet() for name in fleet}, EngineChannels()

    def listed() -> list[Any]:
        return [replica for known in sets.values() for replica in known.listed()]

    def all_greeted() -> bool:
        return all(channels.current(one) is not None for one in listed())

    def names(ids: list[str]) -> dict[str, dict[str, str]]:
        return {one: {"address": address, "token": one, "identity": ""} for one in ids}

    before = resident_mib()
    listening = asyncio.create_task(Heartbeats(list(sets.values()), channels).run())
    for name, ids in fleet.items():
        sets[name].update(names(ids))
    await _until(all_greeted)
    replicas, connected = len(listed()), resident_mib()
    begun, at = time.process_time(), time.monotonic()
    await asyncio.sleep(_IDLE_S)
    idle = (time.process_time() - begun) / (time.monotonic() - at)
    known, ids = next(iter(sets.values())), next(iter(fleet.values()))
    figures = {
        "idle: % of a core": 100 * idle,
        "heartbeats a second": replicas / BEAT_S,
        "heartbeats a second, all ingress replicas": ingresses * replicas / BEAT_S,
        **_pick(names(ids)),
        **await _pages(store, fleet, sets),
        **_quotas(store, ingresses),
    }

    lost = set(ids[:PER_NODE])  # a node is lost: its connections stay open
    control.send(lost)
    figures["8 replicas lost: s until not picked"] = await _until(
        lambda: sum(bool(one.trouble) for one in known.listed()) == len(lost)
    )
    lists, begun = 20, time.process_time()
    for number in range(lists):  # a rolling restart: each list has a new replica
        ids = [*ids[1:], f"n{number:04d}"]
        known.update(names(ids))
    figures["rolling restart: ms for each list"] = 1e3 * (time.process_time() - begun) / lists
    await _until(all_greeted)
    at, begun = time.monotonic(), time.process_time()
    known.update(names([*ids, *(f"g{number:04d}" for number in range(200))]))
    figures["200 more: ms until picked"] = 1e3 * (time.monotonic() - at)
    await _until(all_greeted)
    figures["200 more: ms of CPU until connected"] = 1e3 * (time.process_time() - begun)
    known.update(names(ids))
    await asyncio.sleep(2 * BEAT_S)  # heartbeats tell the size of caches
    gc.collect()
    empty = resident_mib()
    _fill(sets)
    figures |= {
        "memory: connections, MiB": connected - before,
        "memory: indexes, MiB": resident_mib() - empty,
    }
    listening.cancel()
    control.send(None)
    process.join()
    return figures


async def _until(holds: Callable[[], bool], limit_s: float = 60.0) -> float:
    begun = time.monotonic()
    while not holds():
        assert time.monotonic() - begun < limit_s, "the fleet did not reach the state in a minute"
        await asyncio.sleep(0.01)
    return time.monotonic() - begun


def _pick(names: Mapping[str, Mapping[str, str]]) -> dict[str, float]:
    """Pick at four requests a replica: half of the prompts share a prefix.

    Each pick is made in several equal fleets, and its least time counts: a busy machine lengthens some.
    """
    rounds, places, system = list[list[int]](), 4 * len(names), tuple(range(4))
    for _ in range(_ROUNDS):
        draw, slots, costs, known = random.Random(0), list[Reservation](), list[int](), ReplicaSet()
        known.update(names)
        known.choice.step_tokens = STEP_TOKENS
        for name in names:
            known.prefixes.resize(name, KV_CACHE_TOKENS)
        for number in range(places + _PICKS):
            own = tuple(draw.getrandbits(63) for _ in range(4))
            blocks = own if number % 2 else (*system, *own)
            prefix = PromptPrefix(len(blocks) * BLOCK_BYTES, blocks, draw.getrandbits(63))
            begun = time.thread_time_ns()
            slot = known.take(256, 64 * len(blocks), 0.16, 64, prefix)
            costs.append(time.thread_time_ns() - begun)
            assert slot is not None
            slots.append(slot)
            known.note_first_byte(slots[-1 - draw.randrange(min(8, len(slots)))])
            if len(slots) > places:
                known.release(slots.pop(draw.randrange(places)))
        rounds.append(costs[places:])
    best = sorted(map(min, zip(*rounds, strict=True)))
    return {"pick: mean, µs": sum(best) / _PICKS / 1e3, "pick: P99, µs": best[_PICKS * 99 // 100] / 1e3}


async def _pages(store: FakeStore, fleet: Fleet, sets: dict[str, ReplicaSet]) -> dict[str, float]:
    settings = AppSettings.model_validate(
        {"models": [{"name": name.removeprefix("Engine-")} for name in fleet]}
    )
    live = LiveKnobs({model.name: Knobs() for model in settings.models}, {})
    stored = BoundedCall("documents", state_reader(APP, list(fleet)), 0.0)
    states = {
        name: SimpleNamespace(replica_states={ReplicaState.RUNNING: len(ids)}, status="HEALTHY", message="")
        for name, ids in fleet.items()
    }
    serve_status: Any = BoundedCall("status", lambda: ServeStatus(states), 0.0)
    observer = ServeObserver(settings.models, sets, live, serve_status, stored)
    applier: Any = SimpleNamespace(document=live.document)
    store.take_counts()
    begun = time.process_time()
    await observer.readiness()
    ready_s, (calls, _) = time.process_time() - begun, store.take_counts()
    texts = {f"http://10.0.0.{number}:1/metrics": text for number, text in enumerate(_expositions(fleet))}
    begun = time.process_time()
    merged = cluster_exposition(texts, 0.0)
    merge_s = time.process_time() - begun

    async def metrics() -> bytes:
        return merged.encode()

    seen: Any = SimpleNamespace(readiness=observer.readiness, metrics=metrics)
    page = FleetState(settings, seen, PolicyView(APP, applier), stored)
    begun = time.process_time()
    parts = await page.parts(True)
    page_s = time.process_time() - begun
    page._samples.kept.extend({**parts["samples"][0], "at": random.random()} for _ in range(_SAMPLES))
    return {
        "`/ready`, ms": 1e3 * ready_s,
        "`/ready`: GCS calls": calls,
        "`/metrics`, MB": len(merged) / 1e6,
        "`/metrics`, ms": 1e3 * merge_s,
        "page: a sample, ms": 1e3 * page_s,
        "page: first event, kB": len(_pack(_event({**parts, **page.history()}), with_header=True)) / 1e3,
    }


def _expositions(fleet: Fleet) -> list[str]:
    """Return what the agents of nodes say: six histograms and 40 other series of each replica."""
    everyone = [f'model="{name[7:]}",replica="{one}"' for name, ids in fleet.items() for one in ids]
    texts = []
    for begin in range(0, len(everyone), PER_NODE):
        here, lines = everyone[begin : begin + PER_NODE], list[str]()
        for kind, bounds in _HISTOGRAMS.items():
            name = f"ray_llm_{kind}_seconds"
            lines += [f"# HELP {name} Seconds.", f"# TYPE {name} histogram"]
            for labels in here:
                lines += [
                    f'{name}_bucket{{{labels},cold="false",le="{le}"}} 1234.0' for le in (*bounds, "+Inf")
                ]
                lines += [f"{name}_{end}{{{labels}}} 12345.0" for end in ("sum", "count")]
        for number in range(40):
            name = f"ray_llm_{number}_total"
            lines += [f"# HELP {name} Tokens.", f"# TYPE {name} counter"]
            lines += [f"{name}{{{labels}}} 12345.0" for labels in here]
        texts.append("\n".join(lines) + "\n")
    return texts


def _quotas(store: FakeStore, ingresses: int) -> dict[str, float]:
    """Exchange the demand of keys that are busy at all ingress replicas. Return the mean of one of them."""
    draw, reports = random.Random(2), [QuotaReports(APP, f"i{n:07d}") for n in range(ingresses)]
    demands = {
        f"team-{n}": KeyDemand(round(draw.uniform(0, 999), 3), 1.5, 1, 0, round(draw.random(), 6), 0.5)
        for n in range(_KEYS)
    }
    for each in reports:
        each.exchange(demands)
    store.take_counts()
    begun = time.process_time()
    for each in reports:
        each.exchange(demands)
    passed, (calls, sent) = time.process_time() - begun, store.take_counts()
    return {
        "quotas of 100 keys: GCS calls a second": 2 * calls / ingresses,
        "quotas of 100 keys: kB a second": 2 * sent / 1e3 / ingresses,
        "quotas of 100 keys: % of a core": 2 * 100 * passed / ingresses,
    }


def _fill(sets: dict[str, ReplicaSet]) -> None:
    """Send each replica as many new prompts as its cache holds."""
    draw = random.Random(1)
    for known in sets.values():
        for replica in known.listed():
            for _ in range(KV_CACHE_TOKENS * 4 // BLOCK_BYTES // 12 + 1):
                blocks = tuple(draw.getrandbits(63) for _ in range(11))
                known.prefixes.add(
                    replica.replica_id, PromptPrefix(12 * BLOCK_BYTES, blocks, draw.getrandbits(63))
                )


def resident_mib() -> float:
    """Return the resident memory of this process in MiB."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096 / (1 << 20)
