"""Stages under load: the capacity of a replica, the SLO table, shared prompts, and prefill groups."""

import asyncio
import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

import aiohttp
import numpy as np

from benchmarks.common.progress import say
from benchmarks.gpu_proof.bench import NAME, Bench, plain
from loadtests.client import drive as client
from loadtests.client.prompts import Target
from loadtests.columns import Columns
from loadtests.plan import Planned
from loadtests.record import Record, Run, Timekeeping
from loadtests.scenario import Scenario
from loadtests.summary import summarize
from loadtests.verdicts import judge
from replay.capacity.fleet_file import with_knee, write_profile
from replay.capacity.measure import Limits, Measurement
from replay.capacity.method import Plan
from replay.capacity.open_loop import find_knee
from replay.capacity.server import Server
from replay.profile import Profile
from serve_app.ingress.replica_choice import GROUP_REQUESTS
from serve_app.policy.capacity_model import Mix, capacity_rps

_LEAD_S = 0.5
"""From planning a load to its first request, in which the client draws prompts and opens its session."""
_WORDS = (
    "The tide rises and falls twice a day; every harbour has learned to live with it. Who built the pier?"
)
_SLO_TRIES = 6
"""They tell the rate to within a fifth, if it is not below a quarter of the capacity."""
_SHARED = 0.94
"""The share of a prompt's tokens that is the same in all."""
_CACHE_LOAD = 0.25
"""A share of the capacity for prompts half as long, so that no request waits in a queue."""
_GROUP_LOAD = 0.8
"""The load at which prefill groups are compared, as a share of the capacity."""
_LATE_SHARE = 0.05
"""The share of tokens that may be late at the capacity. The policy sizes fleets for it: ITL P95."""
_GROUP_TRIES = 4
_MOST_REPLICAS = 4


def capacity(bench: Bench) -> dict[str, Any]:
    """Search the highest rate at which one replica keeps the targets, and write `fleet.yaml`."""
    profile = Profile.model_validate(bench.figures("step-time")["profile"])
    found, rates, formula = asyncio.run(_find_knee(bench, bench.url(), profile))
    if found is not None:
        profile = with_knee(profile, found, bench.tokens)
    file = bench.store.folder / "fleet.yaml"
    file.write_text(write_profile(profile), encoding="utf-8")
    return {
        "targets": dict(bench.targets),
        "prompt_tokens": bench.tokens[0],
        "output_tokens": bench.tokens[1],
        "formula_rps": plain(formula),
        "knee": None if found is None else found.model_dump(mode="json"),
        "rates": rates,
        "profile": profile.model_dump(mode="json", exclude_unset=True),
    }


async def _find_knee(bench: Bench, url: str, profile: Profile) -> tuple[Any, list[dict[str, Any]], float]:
    async with aiohttp.ClientSession() as session:
        server = Server(session, url)
        knobs = await server.knobs(NAME)
        words = await server.tokenize(NAME, _WORDS)
    limits = Limits(
        words.max_model_len, profile.kv_cache_tokens, profile.max_num_seqs, profile.max_num_batched_tokens
    )
    measured = Measurement(NAME, (), limits, knobs, None, 0, 0, tuple(sorted(set(words.tokens))))
    prompt, output = bench.tokens
    mix = Mix(prompt_tokens=float(prompt), output_tokens=float(output))
    formula = capacity_rps(profile.step, mix, knobs, float(profile.kv_cache_tokens))
    plan = Plan(url, prompt_tokens=prompt, output_tokens=output, step_s=bench.seconds(10.0, 2.0))
    outcome = await find_knee(plan, measured, profile, lambda what, figures: None)
    found, rates = outcome or (None, ())
    names = ("rps", "ttft_s", "itl_s", "attained", "miss")
    return found, [plain({name: getattr(one, name) for name in names}) for one in rates], formula


def known_rate(bench: Bench) -> float:
    """Return the measured capacity in requests/s, or the formula's where no rate kept the targets."""
    figures = bench.figures("capacity")
    knee = figures["knee"]
    return float(knee["rps"] if knee and knee["rps"] else figures["formula_rps"])


def slo(bench: Bench) -> dict[str, Any]:
    """Send Poisson arrivals at the capacity, then search the largest rate that meets the SLO table."""
    url, for_s = bench.url(), bench.seconds(20.0, 3.0)
    tried: list[dict[str, Any]] = []

    def meets(rate: float) -> bool:
        say(f"SLO table at {rate:.3g} requests/s")
        tried.append(load(bench, url, rate, for_s, seed=len(tried)))
        return bool(tried[-1]["meets_slos"])

    largest = largest_rate(meets, known_rate(bench), _SLO_TRIES)
    return {"largest_rate_that_meets_it": plain(largest), "tried": tried}


def prefix_cache(bench: Bench) -> dict[str, Any]:
    """Send the same load twice, with prompts of which nothing is cached and with a shared system prompt."""
    url, for_s, rate = bench.url(), bench.seconds(15.0, 3.0), _CACHE_LOAD * known_rate(bench)
    prompt_tokens = 2 * bench.tokens[0]
    shared_tokens = round(_SHARED * prompt_tokens)
    found: dict[str, Any] = {"prompt_tokens": prompt_tokens, "shared_tokens": shared_tokens}
    for name, shared in (("nothing_shared", 0), ("shared", shared_tokens)):
        found[name] = load(bench, url, rate, for_s, 0, prompt_tokens=prompt_tokens, shared_tokens=shared)
    medians = [found[name]["latencies_s"]["TTFT"]["p50"] for name in ("shared", "nothing_shared")]
    return {**found, "rps": plain(rate), "ttft_p50_ratio": plain(medians[0] / medians[1])}


def prefill_groups(bench: Bench) -> dict[str, Any]:
    """Measure late tokens and latencies with prompts one by one, and with prompts in groups.

    The ingress sends streams in prefill groups because a step that prefills delays every running stream,
    however many prompts it prefills (`serve_app/ingress/replica_choice.py`). One replica shows that with the
    same requests alone and together. With several GPUs the pick itself is measured too: the same load on
    several replicas, with the knob `prefill_groups` on and off, and the capacity of each.
    """
    rate, for_s = _GROUP_LOAD * known_rate(bench), bench.seconds(15.0, 3.0)
    rows: list[dict[str, Any]] = []

    def measure(how: str, url: str, rate: float, together: int = 1) -> dict[str, Any]:
        say(f"{how}: {rate:.3g} requests/s")
        rows.append({"how": how, **load(bench, url, rate, for_s, len(rows), together)})
        return rows[-1]

    for how, together in (("one by one", 1), (f"{GROUP_REQUESTS} together", GROUP_REQUESTS)):
        measure(how, bench.url(), rate, together)
    found: dict[str, Any] = {"itl_target_s": bench.targets["itl_target_s"], "rows": rows}
    # On a CPU two replicas share the cores, which a rehearsal may.
    replicas = min(_MOST_REPLICAS, len(bench.machine["gpus"])) if bench.on_gpu else 2
    if replicas < 2:
        return found | {"left out": "the pick among several replicas, which takes two GPUs"}
    found |= {"replicas": replicas, "capacity_rps": {}}
    for name in ("on", "off"):
        how = f"{replicas} replicas, prefill_groups {name}"
        bounds = {"min_replicas": replicas, "max_replicas": replicas}
        url = bench.url({**bounds, "prefill_groups": name == "on"})
        measure(how, url, replicas * rate)

        def holds(rate: float, how: str = how, url: str = url) -> bool:
            row = measure(how, url, rate)
            return bool(row["late_tokens"] <= _LATE_SHARE and not row["errors"])

        largest = largest_rate(holds, replicas * known_rate(bench), _GROUP_TRIES)
        found["capacity_rps"][name] = plain(largest)
    return found


def load(bench: Bench, url: str, rate: float, for_s: float, seed: int, together: int = 1,
         prompt_tokens: int = 0, shared_tokens: int = 0) -> dict[str, Any]:  # fmt: skip
    """Send requests at random times, and return rate, percentiles in seconds, errors and the SLO verdict.

    Args:
        bench: The proof.
        url: Of its server.
        rate: Requests a second.
        for_s: Seconds.
        seed: Of the times.
        together: Requests that come at the same moment.
        prompt_tokens: By default those of the bench.
        shared_tokens: Tokens at the beginning that all prompts share.
    """
    prompt, output = bench.tokens
    times = poisson(rate, for_s, seed, together)
    done = drive(url, at_times(times, prompt_tokens or prompt, output, shared_tokens), for_s)
    summary = summarize(done)
    gaps = Columns.of(done.records).gap_s
    late = float(np.mean(gaps > bench.targets["itl_target_s"])) if len(gaps) else 0.0
    return {
        "rps": plain(rate),
        "late_tokens": plain(late),
        "requests": summary.counts.requests,
        "errors": summary.counts.errors,
        "latencies_s": {name: plain(asdict(found)) for name, found in summary.latencies.named()},
        "meets_slos": judge(done, summary).overall == "pass",
    }


def poisson(rate: float, for_s: float, seed: int, together: int = 1) -> list[float]:
    """Return the times of `rate` requests a second that come in groups of `together`, groups at random."""
    draw = random.Random(seed)
    groups = max(1, round(rate * for_s / together))
    return [at for _ in range(groups) for at in [draw.uniform(0.0, for_s)] * together]


def at_times(
    times: Iterable[float], prompt_tokens: int, output_tokens: int, shared_tokens: int = 0
) -> tuple[Planned, ...]:
    """Return a request for each of `times`, seconds; their prompts begin with the same `shared_tokens`."""
    return tuple(
        Planned(index, at_s, NAME, None, "completions", prompt_tokens, output_tokens, shared_tokens)
        for index, at_s in enumerate(sorted(times))
    )


def drive(url: str, planned: Sequence[Planned], for_s: float) -> Run:
    """Send requests at their times to the proof's model, and return the record of each."""
    document = {
        "name": NAME,
        "arrivals": [{"shape": "steady", "for_s": for_s, "rate": max(len(planned) / for_s, 1e-3)}],
        "requests": [{"kind": NAME}],
    }
    scenario = Scenario.model_validate(document)
    # With a seed that came twice, the replica would find the prompts in its prefix cache.
    target = Target(url=url, headers={}, model=NAME, seed=time.time_ns())
    records: list[Record] = []
    began = time.time() + _LEAD_S

    async def send() -> Timekeeping:
        begin = time.monotonic() + _LEAD_S
        return await client.drive(planned, target, scenario.client, begin, records.append, asyncio.Event())

    kept = asyncio.run(send())
    return Run(
        scenario=scenario.model_dump(mode="json"),
        scenario_hash=scenario.digest(),
        url=url,
        began=began,
        duration_s=time.time() - began,
        records=tuple(sorted(records, key=lambda record: record.index)),
        samples=(),
        decisions=(),
        timekeeping=kept,
    )


def largest_rate(holds: Callable[[float], bool], first: float, tries: int) -> float | None:
    """Return the largest rate tried at which `holds` is true; None if it never is.

    The search begins with `first`, doubles or halves until a rate that holds and one that does not are known,
    and then tries the geometric mean of the two.
    """
    kept, missed = 0.0, math.inf
    rate = first
    for _ in range(tries):
        if holds(rate):
            kept = rate
        else:
            missed = rate
        if kept == 0.0:
            rate = missed / 2.0
        elif missed == math.inf:
            rate = kept * 2.0
        else:
            rate = math.sqrt(kept * missed)
    return kept or None
