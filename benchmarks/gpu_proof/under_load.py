"""Stages under load: the capacity of a replica, the SLO table, shared prompts, and prefill groups."""

import asyncio
from typing import Any

import aiohttp

from benchmarks.common.progress import say
from benchmarks.gpu_proof.bench import NAME, Bench, plain
from benchmarks.gpu_proof.loads import largest_rate, load
from replay.capacity.fleet_file import with_knee, write_profile
from replay.capacity.measure import Measurement
from replay.capacity.open_loop import Order, find_knee
from replay.capacity.server import Server
from replay.capacity.sweep import Limits
from replay.profile import Profile
from serve_app.ingress.replica_choice import GROUP_REQUESTS
from serve_app.policy.capacity_model import Mix, capacity_rps

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
    order = Order(url, prompt, output, bench.seconds(10.0, 2.0), 0)
    outcome = await find_knee(order, measured, profile, lambda what, figures: None)
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
