"""False alarms and power of the comparison of versions, by simulation.

    python -m benchmarks.canary_comparisons

Requests come at 10 a second. Equal versions are compared for 240 s. Bad versions are compared until they are
caught, or for an hour.
"""

import statistics
from collections import Counter
from typing import Any

import numpy as np

from serve_app.policy.canary import LOOK_S, Comparison
from serve_app.settings.knobs import CanaryRules
from serve_app.wire.versions import BUCKET_RATIO

RATES = {"errors": 0.002, "length": 0.3, "empty": 0.001, "tool_calls": 0.01}
REQUESTS_PER_LOOK = 20


def drawn(rng: np.random.Generator, requests: int, slower: float = 1.0, **rates: float) -> Counter[str]:
    """Return the counts of one look at a version."""
    rates = RATES | rates
    tools = int(rng.binomial(requests, 0.25))
    latencies = np.log(slower) + rng.normal(-2.0, 0.6, requests)
    counts = Counter(requests=requests, answers=requests, tool_calls=tools)
    counts["errors"] = rng.binomial(requests, rates["errors"])
    counts["length"] = rng.binomial(requests, rates["length"])
    counts["empty"] = rng.binomial(requests, rates["empty"])
    counts["bad_tool_calls"] = rng.binomial(tools, rates["tool_calls"])
    found = np.unique(np.ceil(latencies / np.log(BUCKET_RATIO)).astype(int), return_counts=True)
    for number, each in zip(*found, strict=True):
        counts[f"ttft:{number}"] = counts[f"itl:{number}"] = int(each)
    return counts


def simulate(
    rng: np.random.Generator, share: float, looks: int, rules: CanaryRules, **worse: Any
) -> tuple[str, int]:
    """Return the verdict of one comparison, "" after `looks`, and the requests of the new version."""
    found, requests = Comparison(0.0, 0.0), 0
    for look in range(1, looks + 1):
        new = int(rng.binomial(REQUESTS_PER_LOOK, share))
        requests += new
        old = drawn(rng, REQUESTS_PER_LOOK - new)
        found = found.look(drawn(rng, new, **worse), old, rules, look * LOOK_S)
        if why := found.verdict(rules):
            return why, requests
    return "", requests


SHARES = (0.01, 0.05, 0.25, 0.5)
BAD: dict[str, dict[str, float]] = {
    "errors in 5 %": {"errors": 0.05},
    "errors in 20 %": {"errors": 0.2},
    "no end: always at the limit": {"length": 1.0},
    "empty in 10 %": {"empty": 0.1},
    "bad tool calls in 20 %": {"tool_calls": 0.2},
    "slower by 3": {"slower": 3.0},
}


def main(comparisons: int = 500, looks: int = 120, bad_versions: int = 7) -> None:
    """Print both tables in Markdown."""
    rng = np.random.default_rng(57)
    # Without the least differences, so that only the test prevents an alarm.
    bare = CanaryRules(errors=0.0, length=0.0, empty=0.0, tool_calls=0.0, ttft_p95=1.0, itl_p95=1.0)
    for share in SHARES:
        alarms = sum(bool(simulate(rng, share, looks, bare)[0]) for _ in range(comparisons))
        print(f"| {share:g} | {alarms} of {comparisons} |", flush=True)
    for name, worse in BAD.items():
        for share in SHARES:
            runs = [
                simulate(rng, share, int(3600 / LOOK_S), CanaryRules(), **worse) for _ in range(bad_versions)
            ]
            caught = [requests for why, requests in runs if why]
            middle = f"{statistics.median(caught):.0f} | {max(caught)}" if caught else "- | -"
            print(f"| {name} | {share:g} | {len(caught)} of {bad_versions} | {middle} |", flush=True)


if __name__ == "__main__":
    main()
