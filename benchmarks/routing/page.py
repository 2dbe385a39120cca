"""The page: one table for each trace and GPU."""

from collections.abc import Mapping, Sequence

from benchmarks.common.markdown import table
from benchmarks.routing.runs import FLEETS, ITL_TARGET_S, TTFT_TARGET_S, Job, RoutingRun
from replay.defaults import GOAL
from replay.fleet.conditions import ROUTINGS

_HEAD = f"""# Routings on traces that share prefixes

Static fleets in replay ([replay.md](../replay.md)), each request once by each routing. TTFT target
{TTFT_TARGET_S:g} s, ITL target {1000 * ITL_TARGET_S:g} ms, both at the 95th percentile of each minute.
Caches hold what the GPU's memory leaves, in blocks of 512 tokens, and evict the longest unused. A field is
attainment, the requests within the TTFT target, the median TTFT, and the share of prompt tokens found in
caches. `prefix-aware` is ours ([the pick](../architecture.md#the-pick)), `grouped` the same without knowledge
of caches, `tokens` the least load in prompt tokens, `two-choices` the fewer requests of two replicas drawn at
random, and `text-tree` SGLang's rule, with an index as well bounded and as well informed as ours.
"""


def page(
    runs: Mapping[Job, RoutingRun], command: str, facts: Mapping[str, str], versions: Mapping[str, str]
) -> tuple[str, bool]:
    """Return the page, and whether ours attains as much as every other routing on every fleet."""
    parts = [_HEAD]
    parts.append(f"- **Command:** `{command}`\n- **Machine:** {_pairs(facts)}")
    parts.append(f"- **Versions:** {_pairs(versions)}")
    beaten = []
    for trace in dict.fromkeys(job.trace for job in runs):
        for profile, fleets in FLEETS.items():
            jobs = {
                (job.replicas, job.routing): run
                for job, run in runs.items()
                if (job.trace, job.profile) == (trace, profile)
            }
            rows = [[str(n), *[_field(jobs[n, routing]) for routing in ROUTINGS]] for n in fleets]
            rows.append([f"GPU-s to {GOAL:.0%}", *[_least(jobs, fleets, routing) for routing in ROUTINGS]])
            parts.append(f"\n## {trace.stem}, {profile}\n\n" + table(["replicas", *ROUTINGS], rows))
            ours, *others = ROUTINGS
            beaten += [
                f"{trace.stem}, {profile} x {n}: {other}"
                for n in fleets
                for other in others
                if _worth(jobs[n, other]) > _worth(jobs[n, ours])
            ]
    verdict = "; ".join(beaten) or "nowhere"
    parts.insert(
        2, f"- **Another routing attains more than ours, or as much with more requests in time:** {verdict}"
    )
    return "\n".join(parts) + "\n", not beaten


def _pairs(facts: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def _worth(run: RoutingRun) -> tuple[float, float]:
    return round(run.attainment, 3), round(run.ttft_ok, 3)


def _field(run: RoutingRun) -> str:
    return (
        f"{100 * run.attainment:.1f} %, {100 * run.ttft_ok:.1f} %, {run.ttft_p50_s:.2f} s, "
        f"{100 * run.cached_share:.0f} %"
    )


def _least(jobs: Mapping[tuple[int, str], RoutingRun], fleets: Sequence[int], routing: str) -> str:
    enough = [jobs[n, routing].gpu_seconds for n in fleets if jobs[n, routing].attainment >= GOAL]
    return f"{min(enough):,.0f}" if enough else "more"
