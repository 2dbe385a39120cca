"""One ingress replica's side: heartbeats, picks, `/ready`, `/metrics`, the page and quotas."""

import asyncio
import gc
import multiprocessing
import random
import time
from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import msgspec
from ray.serve._private.common import ReplicaState

from benchmarks.scale.fake_fleet import KV_CACHE_TOKENS, raise_open_files, serve
from benchmarks.scale.fake_store import FakeStore
from benchmarks.scale.policy_side import APP, names
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
from serve_app.ingress.replica_heartbeats import Heartbeats
from serve_app.ingress.replica_set import ReplicaSet
from serve_app.settings.knobs import Knobs, LiveKnobs
from serve_app.settings.tree import AppSettings
from serve_app.telemetry.exposition import cluster_exposition
from serve_app.telemetry.replica_metrics import E2E_S, INTER_TOKEN_S, TTFT_S
from serve_app.wire.data_plane import BEAT_S

_IDLE_S = 4.0
_PICKS = 4_000
_SAMPLES = 61
_KEYS = 100
_PER_NODE = 8
_BUDGET_S = 0.16
_HISTOGRAMS = (TTFT_S, TTFT_S, TTFT_S, INTER_TOKEN_S, E2E_S, E2E_S)


class IngressSide:
    """The ingress code of one replica, in front of a fake fleet in another process."""

    def __init__(self, store: FakeStore, replicas: int, models: int, ingresses: int) -> None:
        raise_open_files()
        self._store, self._ingresses = store, ingresses
        self._fleet = names(replicas, models)
        self._sets = {name: ReplicaSet() for name in self._fleet}
        self._channels = EngineChannels()
        self._heartbeats = Heartbeats(list(self._sets.values()), self._channels)
        self._control, there = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("fork").Process(target=serve, args=(there,), daemon=True)
        self._process.start()
        there.close()
        self._port = self._control.recv()
        given = [{"name": name[7:]} for name in self._fleet]
        self._settings = AppSettings.model_validate({"models": given})
        live = LiveKnobs({model.name: Knobs() for model in self._settings.models}, {})
        self._stored = BoundedCall("documents", state_reader(APP, list(self._fleet)), 0.0)
        status = BoundedCall("status", self._serve_status, 0.0)
        self._observer = ServeObserver(self._settings.models, self._sets, live, status, self._stored)
        applier: Any = SimpleNamespace(document=live.document)
        self._state = FleetState(self._settings, self._observer, PolicyView(APP, applier), self._stored)

    async def measure(self) -> dict[str, float]:
        """Return the figures of one ingress replica."""
        figures: dict[str, float] = {}
        listening = asyncio.create_task(self._heartbeats.run())
        self._list_replicas()
        await self._until(lambda: all(len(self._sets[name]) == len(ids) for name, ids in self._fleet.items()))
        await self._until(lambda: all(map(self._greeted, self._all())))
        replicas = len(self._all())
        begun, at = time.process_time(), time.monotonic()
        await asyncio.sleep(_IDLE_S)
        passed = time.monotonic() - at
        figures["idle: % of a core"] = 100 * (time.process_time() - begun) / passed
        figures["idle: messages a second"] = replicas / BEAT_S
        figures["all ingress replicas: messages a second"] = self._ingresses * replicas / BEAT_S
        figures |= self._pick()
        figures |= await self._pages()
        figures |= self._quotas()
        figures |= await self._changes()
        figures["memory with full indexes, MiB"] = self._fill()
        listening.cancel()
        self._control.send(None)
        self._process.join()
        return figures

    def _greeted(self, replica: Any) -> bool:
        channel = self._channels.current(replica)
        return channel is not None and channel.beat.step_tokens is not None

    def _all(self) -> list[Any]:
        return [replica for known in self._sets.values() for replica in known.listed()]

    def _list_replicas(self) -> None:
        for name, ids in self._fleet.items():
            self._sets[name].update(self._named(ids))

    def _named(self, ids: Collection[str]) -> dict[str, dict[str, str]]:
        return {one: {"address": f"127.0.0.1:{self._port}", "token": one, "identity": ""} for one in ids}

    async def _until(self, holds: Callable[[], bool], limit_s: float = 60.0) -> float:
        begun = time.monotonic()
        while not holds():
            if time.monotonic() - begun > limit_s:
                raise TimeoutError("the fleet did not reach the state in a minute")
            await asyncio.sleep(0.01)
        return time.monotonic() - begun

    def _pick(self) -> dict[str, float]:
        """Pick for streams with hot, own and new prefixes, at four requests a replica."""
        name, known = next(iter(self._sets.items()))
        draw, open_, costs = random.Random(0), [], []
        places = 4 * len(self._fleet[name])
        system = tuple(draw.getrandbits(63) for _ in range(4))
        for number in range(places + _PICKS):
            own = tuple(draw.getrandbits(63) for _ in range(4))
            blocks = own if draw.random() < 0.5 else (*system, *own)
            prefix = PromptPrefix(len(blocks) * BLOCK_BYTES, blocks, draw.getrandbits(63))
            begun = time.thread_time_ns()
            slot = known.take(256, 64 * len(blocks), _BUDGET_S, 64, prefix)
            costs.append(time.thread_time_ns() - begun)
            assert slot is not None
            open_.append(slot)
            if number % 3:
                known.note_first_byte(open_[-1 - draw.randrange(min(8, len(open_)))])
            if number >= places:
                known.release(open_.pop(draw.randrange(places)))
        for slot in open_:
            known.release(slot)
        costs = sorted(costs[-_PICKS:])
        return {"pick: mean, µs": sum(costs) / _PICKS / 1e3, "pick: P99, µs": costs[_PICKS * 99 // 100] / 1e3}

    async def _pages(self) -> dict[str, float]:
        self._store.take_counts()
        begun = time.process_time()
        await self._observer.readiness()
        ready_s = time.process_time() - begun
        calls, _ = self._store.take_counts()
        texts = {f"http://10.0.0.{n}:1/metrics": text for n, text in enumerate(self._expositions())}
        begun = time.process_time()
        merged = cluster_exposition(texts, 0.0)
        merge_s = time.process_time() - begun
        self._observer.metrics = _answer(merged.encode())  # type: ignore[method-assign]
        begun = time.process_time()
        parts = await self._state.parts(True)
        page_s = time.process_time() - begun
        for _ in range(_SAMPLES):
            self._state._samples.kept.append({**parts["samples"][0], "at": time.time() + random.random()})
        first = _event({**parts, **self._state.history()})
        return {
            "`/ready`, ms": 1e3 * ready_s,
            "`/ready`: calls of the GCS": calls,
            "`/metrics`, MB": len(merged) / 1e6,
            "`/metrics`, ms": 1e3 * merge_s,
            "page: a sample, ms": 1e3 * page_s,
            "page: first event, kB": len(_pack(first, with_header=True)) / 1e3,
        }

    def _serve_status(self) -> ServeStatus:
        def status(count: int) -> Any:
            return SimpleNamespace(replica_states={ReplicaState.RUNNING: count}, status="HEALTHY", message="")

        return ServeStatus({name: status(len(ids)) for name, ids in self._fleet.items()})

    def _expositions(self) -> list[str]:
        """Return what the agents of the nodes say: six histograms and 40 other series of each replica."""
        everyone = [(name[7:], one) for name, ids in self._fleet.items() for one in ids]
        texts = []
        for begin in range(0, len(everyone), _PER_NODE):
            here, lines = everyone[begin : begin + _PER_NODE], []
            kinds = [
                "user_ttft_seconds",
                "ttft_seconds",
                "queue_seconds",
                "inter_token_seconds",
                "e2e_seconds",
                "step_seconds",
            ]
            for kind, bounds in zip(kinds, _HISTOGRAMS, strict=True):
                lines += [f"# HELP ray_llm_{kind} Seconds.", f"# TYPE ray_llm_{kind} histogram"]
                for model, one in here:
                    labels = f'model="{model}",replica="{one}",SessionName="session_2026-11-28_10-00-00_1",cold="false"'
                    ends = [f'_bucket{{{labels},le="{le}"}}' for le in (*bounds, "+Inf")]
                    lines += [
                        f"ray_llm_{kind}{end} 12345.0"
                        for end in (*ends, f"_sum{{{labels}}}", f"_count{{{labels}}}")
                    ]
            for number in range(40):
                lines += [f"# HELP ray_llm_total_{number} Tokens.", f"# TYPE ray_llm_total_{number} counter"]
                lines += [
                    f'ray_llm_total_{number}{{model="{model}",replica="{one}"}} 12345.0'
                    for model, one in here
                ]
            texts.append("\n".join(lines) + "\n")
        return texts

    def _quotas(self) -> dict[str, float]:
        """Exchange the demand of 100 keys, all of which are busy at all ingress replicas."""
        demands = {f"team-{n}": KeyDemand(100.0, 1.0, 1, 0, 0.5, 0.5) for n in range(_KEYS)}
        reports = [QuotaReports(APP, f"i{n}") for n in range(self._ingresses)]
        for each in reports:
            each.exchange(demands)
        self._store.take_counts()
        begun = time.process_time()
        reports[0].exchange(demands)
        passed = time.process_time() - begun
        calls, sent = self._store.take_counts()
        return {
            "quotas: calls of the GCS a second": 2 * calls,
            "quotas: kB a second": 2 * sent / 1e3,
            "quotas: % of a core": 2 * 100 * passed,
        }

    async def _changes(self) -> dict[str, float]:
        name, known = next(iter(self._sets.items()))
        ids = self._fleet[name]
        # A node is lost: its replicas fall silent without closing their connections.
        lost = set(ids[:_PER_NODE]) if len(ids) > _PER_NODE else set(ids[:1])
        begun = time.monotonic()
        self._control.send(lost)
        await self._until(lambda: sum(bool(r.trouble) for r in known.listed()) == len(lost))
        lost_s = time.monotonic() - begun
        # A rolling restart: each of 20 lists has another replica in place of one.
        begun_cpu = time.process_time()
        lists = 20
        for number in range(lists):
            ids = [*ids[1:], f"n{number:04d}"]
            known.update(self._named(ids))
        update_s = (time.process_time() - begun_cpu) / lists
        await self._until(lambda: all(map(self._greeted, self._all())))
        # 200 more replicas at once.
        more = [f"g{number:04d}" for number in range(200)]
        begun, begun_cpu = time.monotonic(), time.process_time()
        known.update(self._named([*ids, *more]))
        picked = time.monotonic() - begun
        await self._until(lambda: all(map(self._greeted, self._all())))
        grown_s = time.process_time() - begun_cpu
        known.update(self._named(ids))
        return {
            "a node of 8 lost: s until not picked": lost_s,
            "rolling restart: ms for each list": 1e3 * update_s,
            "200 more: s until picked": picked,
            "200 more: s of CPU until all are connected": grown_s,
        }

    def _fill(self) -> float:
        """Return the memory of this process once each index has as many blocks as the cache of its replica."""
        draw = random.Random(1)
        for known in self._sets.values():
            for replica in known.listed():
                known.prefixes.resize(replica.replica_id, KV_CACHE_TOKENS)
                for _ in range(KV_CACHE_TOKENS * 4 // BLOCK_BYTES // 12 + 1):
                    blocks = tuple(draw.getrandbits(63) for _ in range(11))
                    known.prefixes.add(
                        replica.replica_id, PromptPrefix(12 * BLOCK_BYTES, blocks, draw.getrandbits(63))
                    )
        gc.collect()
        return resident_mib()


def resident_mib() -> float:
    """Return the resident memory of this process in MiB."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096 / (1 << 20)


def _answer(text: bytes) -> Callable[[], Any]:
    async def answer() -> bytes:
        return text

    return answer
