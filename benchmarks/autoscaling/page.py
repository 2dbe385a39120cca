"""The page of results, written anew from the runs each time."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import REPOSITORY
from benchmarks.autoscaling.results import BURSTY_GOAL, BURSTY_TTFT_OK, SMOOTH_GOAL, Results, family
from benchmarks.autoscaling.runs import BASE, GRID
from benchmarks.autoscaling.targets import Target, met
from benchmarks.autoscaling.windows import SMOOTH_PEAK_TO_MEAN, Window
from benchmarks.common.markdown import table
from replay.advice.score import Spread
from replay.defaults import ORACLE, OURS, STATIC
from serve_app.cli import formats

_MEASUREMENTS = REPOSITORY / "docs/measurements.md"


@dataclass(frozen=True, slots=True)
class Facts:
    """The command, machine and versions of the benchmark's run."""

    command: str
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    seeds: Sequence[int]
    cut_s: float | None
    failures: Mapping[str, str]
    """Reasons, by the label of each replay that failed."""


def page(results: Results, found: Sequence[Target], facts: Facts, picture: Path, at: Path) -> str:
    """The page as Markdown, for the file `at`."""

    def link(target: Path) -> str:
        return Path(os.path.relpath(target, at.parent)).as_posix()

    parts = [
        "# Autoscaling policies on recorded traffic",
        _INTRODUCTION,
        _facts(results, facts),
        f"![GPU-seconds over the oracle's and attainment of every policy on every window]({link(picture)})",
        "## Targets",
        _targets(found),
        "## The windows",
        _windows(results),
        _per_window(results),
        "## Peers tuned to each window",
        _tuned(results),
        "## Other measurements",
        "Routings on prompts that share prefixes, changes of the policy that were tried, and how far the\n"
        f"past can tell: [measurements]({link(_MEASUREMENTS)}).",
    ]
    return "\n\n".join(parts) + "\n"


_INTRODUCTION = f"""\
Every policy decides over the same simulated fleet, with the same recorded requests and cold starts and our
ingress's routing (`tideserve replay`). Ours is the production code. The peers' policies are written from what
their authors publish.

- **Attainment**: the share of requests in one-minute windows in which both P95 TTFT and P95 inter-token
  latency are within 200 ms and 25 ms. **GPU-seconds**: from a start asked for to the end of the drain.
- **Oracle**: a schedule that knows the requests beforehand and is made to attain 99 %; a bound, not a
  policy. **Static**: the fewest replicas that attain 99 %, known only in hindsight.
- **Smooth**: the busiest minute has at most {SMOOTH_PEAK_TO_MEAN:g} times the mean rate. The goal is
  {SMOOTH_GOAL:.0%} attainment there; on bursty windows, {BURSTY_GOAL:.0%} and {BURSTY_TTFT_OK:.0%}
  of requests with TTFT in time."""


def _facts(results: Results, facts: Facts) -> str:
    seeds = ", ".join(map(str, facts.seeds))
    minutes = sum(run.wall_s for run in results.runs) / 60
    lines = [
        f"- **Command:** `{facts.command}`",
        "- **Machine:** " + ", ".join(f"{key} {value}" for key, value in facts.machine.items()),
        "- **Versions:** " + ", ".join(f"{key} {value}" for key, value in facts.versions.items()),
        f"- **Seeds:** {seeds}; medians over them, with the lowest and highest in brackets where they differ",
        f"- **Time:** {minutes:.0f} minutes of one core",
    ]
    if facts.cut_s is not None:
        lines.append(f"- **Cut:** only the first {facts.cut_s:g} s of each window")
    lines += [f"- **Failed:** {label}: {why}" for label, why in facts.failures.items()]
    return "\n".join(lines)


def _targets(found: Sequence[Target]) -> str:
    rows = [[target.asked, target.shown, _MET[target.met]] for target in found]
    text = "All targets are met." if met(found) else ""
    missed = sum(target.met is False for target in found)
    unknown = sum(target.met is None for target in found)
    if not text:
        text = f"{len(found) - missed - unknown} of {len(found)} targets are met"
        text += f"; {unknown} could not be judged." if unknown else "."
    about = (
        "The last ten targets replay our policy at the same settings in other circumstances. With another "
        "prior, the cost is against the usual run. With other cold starts or another GPU, it is the ratio to "
        "the oracle there, against the usual ratio."
    )
    return "\n".join([text, about, "", table(["target", "measured", ""], rows)])


_MET: Mapping[bool | None, str] = {True: "met", False: "**missed**", None: "not judged"}


def _windows(results: Results) -> str:
    rows = []
    for window in results.windows:
        runs = [run for run in results.runs if run.window == window.name and run.variant == BASE.name]
        rows.append(
            [
                window.name,
                "smooth" if window.smooth else "bursty",
                formats.seconds(window.duration_s),
                f"{window.requests:,}",
                f"{window.mean_rps:.1f}",
                f"{window.peak_to_mean:.1f}",
                f"{window.idle_share:.0%}",
                f"{runs[0].infeasible:.1%}" if runs else "-",
            ]
        )
    header = ["window", "traffic", "length", "requests", "mean requests/s", "peak:mean", "idle minutes"]
    return table([*header, "infeasible"], rows) + (
        "\n\nInfeasible: requests whose own prefill takes longer than the TTFT target on an empty replica."
    )


def _per_window(results: Results) -> str:
    rows = []
    for window in results.windows:
        names = [name for name in (ORACLE, OURS, STATIC) if results.of(window, name)]
        peers = [name for name in results.peers() if name not in GRID and results.of(window, name)]
        names += sorted(peers, key=lambda name: results.cost([window], name))
        rows += [_row(results, window, name) for name in names]
    return table(_COLUMNS, rows)


_COLUMNS = [
    "window", "policy", "GPU-seconds", "over oracle", "attainment %", "warm %", "TTFT in time %", "warm %",
    "waited for a start", "their TTFT P95", "starts", "changes", "peak",
]  # fmt: skip


def _row(results: Results, window: Window, name: str) -> list[str]:
    def of(figure: str, form: Callable[[float], str]) -> str:
        return _with_range(results.spread(window, name, figure), form)

    runs = results.of(window, name)
    shown = runs[0].name if name == STATIC else name
    cold = results.spread(window, name, "cold")
    return [
        window.name,
        f"**{shown}**" if name == OURS else f"`{shown}`",
        of("gpu_seconds", formats.whole),
        _with_range(results.ratio(window, name, ORACLE), "{:.2f}".format),
        of("attainment", _points),
        of("attainment_warm", _points),
        of("ttft_ok", _points),
        of("ttft_ok_warm", _points),
        of("cold", formats.whole),
        of("ttft_cold_p95_s", formats.seconds) if cold is not None and cold.high > 0 else "-",
        of("starts", formats.whole),
        of("changes", formats.whole),
        of("peak", formats.whole),
    ]


def _points(share: float) -> str:
    return formats.percent(share).removesuffix(" %")


def _with_range(spread: Spread | None, form: Callable[[float], str]) -> str:
    if spread is None:
        return "-"
    low, middle, high = form(spread.low), form(spread.median), form(spread.high)
    return middle if low == high else f"{middle} ({low}-{high})"


def _tuned(results: Results) -> str:
    rows = []
    for window in results.windows:
        best = results.cheapest_peer([window])
        for policy in dict.fromkeys(map(family, results.peers())):
            settings = [p for p in results.peers() if family(p) == policy and results.of(window, p)]
            if not settings:
                continue
            able = [p for p in settings if results.meets_goal(window, p)]
            chosen = (
                min(able, key=lambda p: results.cost([window], p))
                if able
                else max(settings, key=lambda p: _median(results, window, p, "attainment"))
            )
            own = results.ratio(window, OURS, chosen)
            rows.append(
                [
                    window.name,
                    f"**`{chosen}`**" if chosen == best else f"`{chosen}`",
                    str(len(settings)),
                    formats.whole(results.cost([window], chosen)),
                    _with_range(results.ratio(window, chosen, ORACLE), "{:.2f}".format),
                    _points(_median(results, window, chosen, "attainment")),
                    _points(_median(results, window, chosen, "ttft_ok")),
                    "yes" if able else "no",
                    _with_range(own, "{:.2f}".format),
                ]
            )
    if not rows:
        return "Not run."
    header = ["window", "peer at its best", "settings tried", "GPU-seconds", "over oracle"]
    header += ["attainment %", "TTFT in time %", "meets the goal", "ours over it"]
    return (
        "Each policy has its cheapest setting that meets the window's goal, or its setting that attains most "
        "where none does. The cheapest peer that meets the goal is bold. Settings beyond the published ones "
        "are run on the first seed.\n\n" + table(header, rows)
    )


def _median(results: Results, window: Window, policy: str, figure: str) -> float:
    found = results.spread(window, policy, figure)
    return found.median if found else 0.0
