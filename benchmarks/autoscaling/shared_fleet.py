"""Twenty models on 4, 8 and 16 GPUs: recorded traffic, split among models by Zipf popularity.

    python -m benchmarks.autoscaling.shared_fleet ../shared/traces/windows/*.gz --out tables.md

Each window is thinned so that all of the GPUs together would be busy for `LOAD` of the time. Requests come in
sessions: at each moment as many sessions as GPUs are open, each of one model, for about `SESSION_S`.
"""

import argparse
import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from replay.defaults import KNOBS
from replay.profile import load_profile
from replay.shared_bound import Hindsight, most_in_time
from replay.shared_fleet import SharedResult, conditions_of, policies, simulate_shared, table
from serve_app.policy.capacity_model import Mix
from traces import open_trace
from traces.trace import ArrayTrace, Trace

MODELS = 20
EXPONENTS = (0.8, 1.1)
GPUS = (4, 8, 16)
LOAD = 0.3
BATCH = 8
"""Sequences that share a step, for the work of a request."""
SESSION_S = 600.0
MOST_REPLICAS = 4


@dataclass(frozen=True, slots=True)
class Case:
    """One window on one fleet."""

    window: Path
    exponent: float
    gpus: int
    cut_s: float | None = None
    """Only its first so many seconds are replayed; None: all of it."""
    seed: int = 0


def split(case: Case) -> dict[str, Trace]:
    """Return the requests of each model, with at least one request."""
    random = np.random.default_rng(case.seed)
    chunks = list(open_trace(case.window, duration_s=case.cut_s).chunks())
    arrival_s = np.concatenate([chunk.arrival_s for chunk in chunks])
    prompt = np.concatenate([chunk.input_tokens for chunk in chunks])
    answer = np.concatenate([chunk.output_tokens for chunk in chunks])
    profile = load_profile("a100-80gb")
    mix = Mix(float(prompt.mean()), output_tokens=float(answer.mean()))
    step = profile.step
    one_s = step.prefill_s(mix) + mix.output_tokens * (step.sequence_s(mix) + step.base_s / BATCH)
    keep = min(1.0, LOAD * case.gpus * float(arrival_s[-1]) / (one_s * len(arrival_s)))
    kept = random.random(len(arrival_s)) < keep
    arrival_s, prompt, answer = arrival_s[kept], prompt[kept], answer[kept]
    weights = np.arange(1, MODELS + 1, dtype=np.float64) ** -case.exponent
    weights /= weights.sum()
    # A session in each of as many rows as GPUs; a row's next session begins where the last one ends.
    row = random.integers(0, case.gpus, len(arrival_s))
    model = np.zeros(len(arrival_s), dtype=np.int64)
    for number in range(case.gpus):
        ends = np.cumsum(random.exponential(SESSION_S, int(10 + 3 * arrival_s[-1] / SESSION_S)))
        drawn = random.choice(MODELS, len(ends) + 1, p=weights)
        here = row == number
        model[here] = drawn[np.searchsorted(ends, arrival_s[here])]
    return {
        f"m{number + 1}": ArrayTrace(f"m{number + 1}", arrival_s[mine], prompt[mine], answer[mine])
        for number in range(MODELS)
        if (mine := model == number).any()
    }


def run(case: Case) -> tuple[Case, list[SharedResult], float]:
    """Return the results of every policy, and the bound on the share of requests in time."""
    traces, profile = split(case), load_profile("a100-80gb")
    knobs = KNOBS.model_copy(update={"max_replicas": MOST_REPLICAS})
    conditions = conditions_of(knobs, profile, case.seed)
    fleet = (traces, case.gpus, profile, knobs.ttft_target_s, MOST_REPLICAS)
    results = [
        simulate_shared(traces, policy, case.gpus, profile, conditions)
        for policy in (*policies(traces, knobs), Hindsight(*fleet))
    ]
    bound = most_in_time(*fleet)
    return case, results, bound / max(results[0].requests, 1)


def page(found: Sequence[tuple[Case, list[SharedResult], float]]) -> str:
    """Return the tables: the sums over all windows for each fleet, then each window."""
    lines = []
    for gpus in GPUS:
        for exponent in EXPONENTS:
            here = [each for each in found if (each[0].gpus, each[0].exponent) == (gpus, exponent)]
            if here:
                lines += [f"### {gpus} GPUs, exponent {exponent:g}", ""]
                for case, results, bound in here:
                    name = case.window.name.partition(".")[0]
                    lines += [f"`{name}`: {results[0].requests:,} requests; at most {bound:.1%} in time.", ""]
                    lines += [*table(results), ""]
    return "\n".join(lines)


def main() -> None:
    """Replay all cases and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("windows", nargs="+", type=Path)
    parser.add_argument("--gpus", nargs="*", type=int, default=GPUS)
    parser.add_argument("--seconds", type=float, help="replay only so much of each window")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    cases = [
        Case(window, exponent, gpus, asked.seconds)
        for gpus in asked.gpus
        for exponent in EXPONENTS
        for window in asked.windows
    ]
    with multiprocessing.Pool() as pool:
        found = []
        for each in pool.imap_unordered(run, cases):
            found.append(each)
            print(each[0], flush=True)
            print("\n".join([f"bound {each[2]:.1%}", *table(each[1])]), flush=True)
    text = page(sorted(found, key=lambda each: cases.index(each[0])))
    if asked.out:
        asked.out.write_text(text)


if __name__ == "__main__":
    main()
