"""Stage `capacity`: the knee of one replica, and the fleet file."""

import asyncio
from typing import Any

import aiohttp

from benchmarks.gpu_proof.bench import NAME, Bench, plain
from replay.capacity.fleet_file import with_knee, write_profile
from replay.capacity.measure import Limits, Measurement
from replay.capacity.open_loop import Order, find_knee
from replay.capacity.server import Server
from replay.profile import Profile
from serve_app.policy.capacity_model import Mix, capacity_rps

_USUAL_STEP_S, _LEAST_STEP_S = 10.0, 2.0
_WORDS = (
    "The tide rises and falls twice a day; every harbour has learned to live with it. Who built the pier?"
)


def capacity(bench: Bench) -> dict[str, Any]:
    """Search the highest rate at which one replica keeps the targets, and write `fleet.yaml`."""
    profile = Profile.model_validate(bench.figures("step-time")["profile"])
    url = bench.url(bench.model())
    step_s = bench.seconds(_USUAL_STEP_S, _LEAST_STEP_S)
    found, rates, formula = asyncio.run(_knee(url, profile, step_s, bench.tokens))
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
        "fleet_file": file.name,
        "profile": profile.model_dump(mode="json", exclude_unset=True),
    }


async def _knee(
    url: str, profile: Profile, step_s: float, tokens: tuple[int, int]
) -> tuple[Any, list[dict[str, Any]], float]:
    async with aiohttp.ClientSession() as session:
        server = Server(session, url)
        knobs = await server.knobs(NAME)
        words = await server.tokenize(NAME, _WORDS)
    limits = Limits(
        words.max_model_len, profile.kv_cache_tokens, profile.max_num_seqs, profile.max_num_batched_tokens
    )
    measured = Measurement(NAME, (), limits, knobs, None, 0, 0, tuple(sorted(set(words.tokens))))
    mix = Mix(prompt_tokens=float(tokens[0]), output_tokens=float(tokens[1]))
    formula = capacity_rps(profile.step, mix, knobs, float(profile.kv_cache_tokens))
    order = Order(url, *tokens, step_s, 0)
    outcome = await find_knee(order, measured, profile, lambda what, figures: None)
    if outcome is None:
        return None, [], formula
    found, rates = outcome
    told = [
        plain(
            {
                "rps": one.rps,
                "ttft_s": one.ttft_s,
                "itl_s": one.itl_s,
                "attained": one.attained,
                "miss": one.miss,
            }
        )
        for one in rates
    ]
    return found, told, formula


def known_rate(bench: Bench) -> float:
    """Return the measured capacity in requests/s, or the formula's where no rate was held."""
    figures = bench.figures("capacity")
    knee = figures["knee"]
    return float(knee["rps"] if knee and knee["rps"] else figures["formula_rps"])
