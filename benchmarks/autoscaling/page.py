"""The page of results, made anew from the runs each time."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import REPOSITORY
from benchmarks.autoscaling.plan import BASE, GRID, VARIANTS, Variant
from benchmarks.autoscaling.summary import BURSTY_GOAL, BURSTY_TTFT_OK, SMOOTH_GOAL, Results, family
from benchmarks.autoscaling.targets import Target, met, signed, strain
from benchmarks.autoscaling.windows import SMOOTH_PEAK_TO_MEAN, Window
from benchmarks.common.markdown import table
from replay.advice.score import Spread
from replay.defaults import ORACLE, OURS, STATIC
from serve_app.cli import formats

_ROUTING = REPOSITORY / "docs/benchmarks/routing.md"


@dataclass(frozen=True, slots=True)
class Facts:
    """The command, machine and versions of the benchmark's run."""

    command: str
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    seeds: Sequence[int]
    cut_s: float | None
    codes: int
    """Different states of the sources, that of now and those of the runs: more than one if some were cached,
    or the sources changed meanwhile."""
    failures: Mapping[str, str]
    """Why, by the label of each replay that came to nothing."""
    wall_s: float
    """Seconds of all replays, summed."""


def page(
    results: Results, found: Sequence[Target], facts: Facts, picture: Path, at: Path, notes: Path
) -> str:
    """The page as Markdown."""

    def link(target: Path) -> str:
        return Path(os.path.relpath(target, at.parent)).as_posix()

    parts = [
        "# Autoscaling policies on recorded traffic",
        _INTRODUCTION,
        _facts(facts),
        f"![GPU-seconds over the oracle's and attainment of every policy on every window]({link(picture)})",
        "## Targets",
        _targets(found),
        "## The windows",
        _windows(results),
        _per_window(results),
        "## Peers tuned to each window",
        _tuned(results),
        "## Robustness",
        _robustness(results),
        "## Routing",
        "Prompts that share prefixes, on static fleets by every routing of `tideserve replay`, with "
        f"the GPU-seconds to 99 % attainment: [routing.md]({link(_ROUTING)}).",
        "## What was tried, and what could be known",
        f"Ablations, and what did not help: [tried.md]({link(notes / 'tried.md')}). What a policy could do "
        f"that knew the needs of every past minute: [known_needs.md]({link(notes / 'known_needs.md')}).",
    ]
    return "\n\n".join(parts) + "\n"


_INTRODUCTION = f"""\
Every policy decides over the same simulated fleet, under the same recorded requests, cold starts and our
ingress's routing (`tideserve replay`). Ours is the production code; the peers' laws are written anew.

- **Attainment**: the share of requests in one-minute windows in which both P95 TTFT and P95 inter-token
  latency are within 200 ms and 25 ms. **GPU-seconds**: from a start asked for to the end of the drain.
- **Oracle**: a schedule that knows the requests beforehand and is made to attain 99 %; a bound, not a
  policy. **Static**: the fewest replicas that attain 99 %, known only in hindsight.
- **Smooth**: the busiest minute has at most {SMOOTH_PEAK_TO_MEAN:g} times the mean rate. The goal is
  {SMOOTH_GOAL:.0%} attainment there; on bursty windows, {BURSTY_GOAL:.0%} and {BURSTY_TTFT_OK:.0%}
  of requests with TTFT in time."""


def _facts(facts: Facts) -> str:
    seeds = ", ".join(map(str, facts.seeds))
    lines = [
        f"- **Command:** `{facts.command}`",
        "- **Machine:** " + ", ".join(f"{key} {value}" for key, value in facts.machine.items()),
        "- **Versions:** " + ", ".join(f"{key} {value}" for key, value in facts.versions.items()),
        f"- **Seeds:** {seeds}; medians over them, with the lowest and highest in brackets where they differ",
        f"- **Time:** {facts.wall_s / 60:.0f} minutes of one core",
    ]
    if facts.cut_s is not None:
        lines.append(f"- **Cut:** only the first {facts.cut_s:g} s of each window")
    if facts.codes > 1:
        lines.append(
            f"- **Mixed:** {facts.codes} states of the code are in these figures; `--fresh` runs all anew"
        )
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
    return "\n".join([text, "", table(["target", "measured", ""], rows)])


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
        names += sorted(peers, key=lambda name: results.cost(window, name))
        rows += [_row(results, window, name) for name in names]
    return table(_COLUMNS, rows)


_COLUMNS = [
    "window", "policy", "GPU-seconds", "over oracle", "attainment %", "warm %", "TTFT in time %", "warm %",
    "held cold", "their TTFT P95", "starts", "changes", "peak",
]  # fmt: skip


def _row(results: Results, window: Window, name: str) -> list[str]:
    def of(figure: str, form: Callable[[float], str]) -> str:
        return _with_range(results.spread(window, name, figure), form)

    runs = results.of(window, name)
    shown = runs[0].name if name == STATIC else name
    held = results.spread(window, name, "cold")
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
        of("ttft_cold_p95_s", formats.seconds) if held is not None and held.high > 0 else "-",
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
        best = results.tuned_peer(window)
        for law in dict.fromkeys(map(family, results.peers())):
            settings = [p for p in results.peers() if family(p) == law and results.of(window, p)]
            if not settings:
                continue
            able = [p for p in settings if results.meets_goal(window, p)]
            chosen = (
                min(able, key=lambda p: results.cost(window, p))
                if able
                else max(settings, key=lambda p: _median(results, window, p, "attainment"))
            )
            own = results.ratio(window, OURS, chosen)
            rows.append(
                [
                    window.name,
                    f"**`{chosen}`**" if chosen == best else f"`{chosen}`",
                    str(len(settings)),
                    formats.whole(results.cost(window, chosen)),
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
        "Of each law the cheapest setting that meets the window's goal, or the one that attains most where "
        "none does; in bold the cheapest of all that meet it. Settings beyond those published are run on the "
        "first seed.\n\n" + table(header, rows)
    )


def _median(results: Results, window: Window, policy: str, figure: str) -> float:
    found = results.spread(window, policy, figure)
    return found.median if found else 0.0


def _robustness(results: Results) -> str:
    rows = []
    for variant in VARIANTS:
        cells = [_strained(results, window, variant) for window in results.windows]
        if any(cells):
            rows.append([variant.title, *(cell or "-" for cell in cells)])
    if not rows:
        return "Not run."
    header = ["circumstances", *(window.name for window in results.windows)]
    return (
        "Ours, at the same settings, under other circumstances: GPU-seconds (cost), attainment % (points). "
        "With another prior the cost is GPU-seconds against the usual run on the same seed; with other cold "
        "starts or another GPU it is the ratio to the oracle under them, against the usual ratio. Points are "
        "attainment gained or lost.\n\n" + table(header, rows)
    )


def _strained(results: Results, window: Window, variant: Variant) -> str:
    found = strain(results, window, variant)
    if found is None:
        return ""
    cost = "-" if found.extra_cost is None else f"{signed(100 * found.extra_cost)}%"
    gpu_seconds = formats.whole(_of(results.spread(window, OURS, "gpu_seconds", variant.name)))
    attained = _points(_of(results.spread(window, OURS, "attainment", variant.name)))
    return f"{gpu_seconds} ({cost}), {attained} ({signed(-100 * found.lost_attainment)})"


def _of(spread: Spread | None) -> float:
    return spread.median if spread is not None else float("nan")
