"""Results that look as a replay's do: a day's rhythm in three hours, bursts, and three policies on it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from loadtests.traces.trace import Floats
from replay.fleet.fleet import GpuSeconds
from replay.result import Percentiles, Result, Timeline, Windows

STEP_S = 5.0
HOURS = 3
CAPACITY_RPS = 3.0
COLD_START_S = 75.0
TTFT_TARGET_S, ITL_TARGET_S = 0.2, 0.025


@dataclass
class Fleet:
    """What one made-up policy made of the traffic, one element a step."""

    wanted: Floats
    target: Floats
    ready: Floats
    starting: Floats
    draining: Floats
    queued: Floats
    held: Floats


def traffic(hours: float = HOURS, seed: int = 7) -> Floats:
    """Requests a second, every `STEP_S`: a rise and fall, three bursts, and a silence at the start."""
    rng = np.random.default_rng(seed)
    at = np.arange(0, hours * 3600, STEP_S)
    rate = 14 + 16 * np.sin(at / (hours * 3600) * 2 * np.pi - 0.9) ** 2 * (1 + 0.25 * np.sin(at / 700))
    for start, height in ((0.24, 9.0), (0.55, 17.0), (0.82, 8.0)):
        middle = start * hours * 3600
        rate += height * np.exp(-(((at - middle) / 170) ** 2))
    rate *= np.clip((at - 0.06 * hours * 3600) / 900, 0.0, 1.0) ** 1.5
    return rng.poisson(np.maximum(rate, 0) * STEP_S) / STEP_S


def fleet(rate: Floats, wish: Callable[[int], float], down_after_s: float) -> Fleet:
    """The fleet under a wish for replicas: cold starts, a delay before going down, and queues."""
    steps = len(rate)
    cold = int(COLD_START_S / STEP_S)
    out = Fleet(*(np.zeros(steps) for _ in range(7)))
    ready, target, queue, below_since = 0.0, 0.0, 0.0, 0
    arriving = np.zeros(steps + cold + 1)
    for step in range(steps):
        wanted = wish(step)
        if wanted > target:
            arriving[step + cold] += wanted - target
            target = wanted
            below_since = step
        elif wanted == target:
            below_since = step
        elif (step - below_since) * STEP_S >= down_after_s:
            out.draining[step : step + 3] += target - wanted
            ready = min(ready, wanted)
            arriving[step + 1 :] = 0
            target = wanted
            below_since = step
        ready = min(ready + arriving[step], target)
        queue = max(0.0, queue + rate[step] * STEP_S - ready * CAPACITY_RPS * STEP_S)
        out.wanted[step], out.target[step], out.ready[step] = wanted, target, ready
        out.starting[step] = target - ready
        out.queued[step], out.held[step] = queue, queue if ready == 0 else 0.0
    return out


def windows_of(rate: Floats, line: Fleet, seed: int) -> Windows:
    """Percentiles that follow from how full the replicas were."""
    rng = np.random.default_rng(seed)
    per = int(60 / STEP_S)
    shape = (len(rate) // per, per)
    requests = rate.reshape(shape).sum(axis=1) * STEP_S
    queue = line.queued.reshape(shape).max(axis=1)
    held = line.held.reshape(shape).max(axis=1)
    load = rate.reshape(shape).mean(axis=1) / np.maximum(
        line.ready.reshape(shape).mean(axis=1) * CAPACITY_RPS, 0.1
    )
    noise = rng.uniform(0.93, 1.07, shape[0])
    ttft = np.where(requests > 0, (0.06 + 0.08 * np.minimum(load, 1.5)) * noise + queue / 40, 0.0)
    itl = np.where(requests > 0, (0.013 + 0.009 * np.minimum(load, 1.3) ** 2) * noise, 0.0)
    ttft = np.where(held > 0, np.maximum(ttft, 60 + 10 * noise), ttft)
    slow = (ttft > TTFT_TARGET_S) | (itl > ITL_TARGET_S)
    return Windows(
        requests=requests,
        ttft_ok=np.where(ttft > TTFT_TARGET_S, np.floor(requests * 0.7), requests),
        cold=np.where(held > 0, np.minimum(held, requests), 0.0),
        rejected=np.zeros(shape[0]),
        ttft_p95_s=ttft,
        itl_p95_s=itl,
        itl_ok_share=np.where(itl > ITL_TARGET_S, 0.9, 0.99),
        attained=np.where(slow & (requests > 0), 0.0, 1.0),
    )


def term(name: str, replicas: int, why: str) -> dict[str, Any]:
    return {"name": name, "replicas": replicas, "why": why}


def decisions_of(line: Fleet, rate: Floats) -> list[dict[str, Any]]:
    """Records as the production policy writes them, one at every change of the target."""
    records: list[dict[str, Any]] = []
    for step in np.flatnonzero(np.diff(line.target, prepend=0.0)):
        old = int(line.target[step - 1]) if step else 0
        new = int(line.target[step])
        rps = float(rate[max(0, step - 6) : step + 1].mean())
        binding, why = "awake", "requests are waiting or running"
        if new > old and old:
            binding = "demand"
            why = f"{rps:.3g} requests/s arrive ({rps:.3g} over 30 s, {0.93 * rps:.3g} over 60 s)"
        elif new < old:
            binding, why = "demand", f"90% of the last 1200 s saw at most {rps:.3g} requests/s"
        clamps = [{"name": "delay", "effect": "9 were called for 62 s ago; down in 28 s"}]
        records.append(
            {
                "seq": len(records) + 1,
                "at": float(step * STEP_S),
                "deployment": "Engine-llama",
                "model": "llama",
                "kind": "change",
                "mode": "act",
                "old_target": old,
                "new_target": new,
                "wanted": int(line.wanted[step]),
                "ready": int(line.ready[step]),
                "binding": binding,
                "reason": f"{binding}: {why}",
                "counterfactual": f"up at {8 * new + 1} waiting or above {2.1 * new:.3g} requests/s; "
                f"down after 90 s below {1.6 * new:.3g} requests/s",
                "terms": [
                    term("queue", new // 3, "4 requests are waiting; the target is 8 per replica"),
                    term("queue", new // 2, "3120 prompt tokens wait, 0.16 s of prefill"),
                    term(binding, new, why),
                    term("kv_cache", max(1, new - 2), f"{9000 * new} tokens need KV cache, 112000 a replica"),
                    term("awake", 1, "not known to be idle"),
                ],
                "clamps": clamps if new < old else [],
                "signals": {"arrivals_30s_rps": round(rps, 3)},
                "ages_s": {"replica-0": 0.4},
                "notes": [],
            }
        )
    return records


def result_of(policy: str, rate: Floats, line: Fleet, records: list[dict[str, Any]], seed: int = 1) -> Result:
    """Everything a report needs, consistent in itself."""
    seen = windows_of(rate, line, seed)
    total = float(seen.requests.sum())
    good = float((seen.requests * seen.attained).sum())
    cold = float(seen.cold.sum())
    busy = np.minimum(rate / CAPACITY_RPS, line.ready)
    gpu = GpuSeconds(
        serving=float(busy.sum() * STEP_S),
        idle=float((line.ready - busy).sum() * STEP_S),
        warming=float(line.starting.sum() * STEP_S),
        draining=float(line.draining.sum() * STEP_S),
    )
    rises = np.diff(line.target, prepend=0.0)
    share = good / total if total else 1.0
    return Result(
        policy=policy,
        trace="diurnal-3h",
        profile="llama-8b on A100",
        seed=1,
        duration_s=len(rate) * STEP_S,
        requests=int(total),
        rejected=0,
        ttft_target_s=TTFT_TARGET_S,
        itl_target_s=ITL_TARGET_S,
        percentile=95.0,
        attainment=share,
        attainment_warm=min(1.0, share + cold / max(total, 1)),
        ttft_ok=float(seen.ttft_ok.sum() / total) if total else 1.0,
        ttft_ok_warm=0.9991,
        infeasible=0.0123,
        ttft=Percentiles(total, 0.121, (0.095, 0.148, 0.182, 0.91)),
        ttft_warm=Percentiles(total - cold, 0.098, (0.094, 0.141, 0.171, 0.198)),
        ttft_cold=Percentiles(cold, 51.2, (52.0, 69.1, 72.4, 74.8) if cold else (0.0, 0.0, 0.0, 0.0)),
        itl=Percentiles(total * 120, 0.0162, (0.0151, 0.0202, 0.0226, 0.0281)),
        e2e=Percentiles(total, 3.9, (2.8, 8.1, 11.9, 21.4)),
        gpu_seconds=gpu,
        price_per_gpu_hour=2.5,
        starts=int(rises[rises > 0].sum()),
        failed_starts=1,
        peak=int((line.target + line.draining).max(initial=0)),
        changes=int((rises != 0).sum()),
        preemptions=3,
        cached_share=0.25,
        moves=2,
        windows=seen,
        timeline=Timeline(
            interval_s=STEP_S,
            at_s=np.arange(len(rate)) * STEP_S,
            arrivals_rps=rate,
            wanted=line.wanted,
            target=line.target,
            ready=line.ready,
            starting=line.starting,
            draining=line.draining,
            queued=line.queued,
            held=line.held,
        ),
        decisions=records,
        wall_s=4.21,
        oracle_gpu_seconds=0.8 * gpu.total,
    )


def peer(gpu_seconds: float, attainment: float, ttft_ok: float, *fleet: int) -> dict[str, float]:
    summary = {"gpu_seconds": gpu_seconds, "attainment": attainment, "ttft_ok": ttft_ok}
    return {**summary, **dict(zip(("starts", "changes", "peak"), fleet, strict=False))}


PEERS = {
    "static:16": peer(172_800.0, 1.0, 1.0, 16, 1, 16),
    "ray(target=5)": peer(186_100.0, 0.992, 0.996, 61, 44, 24),
    "kpa(target=5)": peer(166_900.0, 0.987, 0.991, 212, 388, 27),
    "hpa(waiting=1)": peer(240_200.0, 0.46, 0.71, 44, 51, 32),
    "apa(target=5)": peer(151_300.0, 0.951, 0.983, 71, 60, 22),
    "dynamo": peer(61_200.0, 0.02, 0.11, 19, 26, 9),
    "wva": peer(58_000.0, 0.01, 0.08, 14, 20, 7),
}


def realistic(hours: float = HOURS) -> list[Result]:
    """Ours, Ray Serve's law at two targets; ours knows of the others as peers."""
    rate = traffic(hours)
    smooth = np.convolve(rate, np.ones(12) / 12)[: len(rate)]
    highest = [float(smooth[max(0, step - 200) : step + 1].max(initial=0)) for step in range(len(rate))]

    def ours(step: int) -> float:
        recent = rate[max(0, step - 24) : step + 1].sum()
        rising = float(smooth[step]) + 1.6 * max(0.0, float(smooth[step] - smooth[max(0, step - 12)]))
        load = max(rising, 0.97 * highest[step]) / CAPACITY_RPS
        return 0.0 if not recent else float(np.ceil(load + np.sqrt(load)))

    def ray(target: float) -> Callable[[int], float]:
        def wish(step: int) -> float:
            mean = float(rate[max(0, step - 6) : step + 1].mean())
            return float(np.ceil(mean * 3.1 / target))

        return wish

    line = fleet(rate, ours, 90)
    first = result_of("tideserve", rate, line, decisions_of(line, rate))
    others = [
        result_of(f"ray(target={target:g})", rate, fleet(rate, ray(target), 600), [], seed=int(target))
        for target in (5.0, 10.0)
    ]
    oracle = 0.8 * first.gpu_seconds.total
    peers = {**PEERS, "oracle": peer(oracle, 0.9903, 0.997)}
    knobs = {"min_replicas": 0, "max_replicas": 32, "ttft_target_s": 0.2, "itl_target_s": 0.025}
    first = replace(first, peers=peers, knobs=knobs, oracle_gpu_seconds=oracle)
    return [first, *(replace(other, oracle_gpu_seconds=oracle) for other in others)]


def empty() -> Result:
    """A replay of nothing at all."""
    none = np.zeros(0)
    line = Fleet(*(none for _ in range(7)))
    rate = np.zeros(0)
    nothing = Percentiles(0, float("nan"), (float("nan"),) * 4)
    return replace(
        result_of("tideserve", rate, line, []),
        ttft=nothing,
        ttft_warm=nothing,
        ttft_cold=nothing,
        itl=nothing,
        e2e=nothing,
        oracle_gpu_seconds=None,
        failed_starts=0,
        attainment_warm=float("nan"),
        price_per_gpu_hour=0.0,
    )
