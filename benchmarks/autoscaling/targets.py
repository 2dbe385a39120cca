"""The targets, set before the policy was tuned, and whether they are met."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from benchmarks.autoscaling.plan import VARIANTS, Variant
from benchmarks.autoscaling.summary import BURSTY_GOAL, BURSTY_TTFT_OK, SMOOTH_GOAL, Results
from benchmarks.autoscaling.windows import Window
from benchmarks.peers.laws import PUBLISHED
from replay.defaults import ORACLE, OURS, STATIC

MEAN_RATIO, WORST_RATIO = 1.25, 1.40
STATIC_RATIO = 0.70
SINGLE_PEER_RATIO = 0.60
TUNED_PEER_RATIO = 0.90
MOST_EXTRA_COST = 0.10
MOST_LOST_POINTS = 0.02


@dataclass(frozen=True, slots=True)
class Target:
    """One target, and whether it is met."""

    key: str
    asked: str
    """The target in words."""
    bound: float
    value: float | None
    """The measured value; None if it was not measured."""
    met: bool | None
    shown: str
    """The value for people, with where it comes from."""


def targets(results: Results) -> list[Target]:
    """Every target with its value."""
    smooth, bursty = results.smooth, results.bursty
    found = [
        _least(
            results, smooth, "attainment", SMOOTH_GOAL, "smooth_attainment",
            f"Smooth windows: at least {SMOOTH_GOAL:.0%} attainment on every one",
        ),
        _ratio_mean(results, smooth),
        _most(
            results, smooth, ORACLE, WORST_RATIO, "smooth_worst_ratio",
            f"Smooth windows: none above {WORST_RATIO:.2f} times the oracle's GPU-seconds",
        ),
        _least(
            results, bursty, "attainment", BURSTY_GOAL, "bursty_attainment",
            f"Bursty windows: at least {BURSTY_GOAL:.0%} attainment on every one",
        ),
        _least(
            results, bursty, "ttft_ok", BURSTY_TTFT_OK, "bursty_ttft_ok",
            f"Bursty windows: at least {BURSTY_TTFT_OK:.0%} of requests within the TTFT target",
        ),
        _most(
            results, bursty, STATIC, STATIC_RATIO, "bursty_static_ratio",
            f"Bursty windows: at most {STATIC_RATIO:.2f} times the GPU-seconds of the least static fleet",
        ),
        _single_peer(results, smooth),
        _tuned_peer(results),
    ]  # fmt: skip
    for variant in VARIANTS:
        found += _robust(results, variant)
    return found


def met(found: Sequence[Target]) -> bool:
    """Whether all were measured and met."""
    return all(target.met for target in found)


def _judged(
    key: str, asked: str, bound: float, value: float | None, shown: str, *, at_least: bool = False
) -> Target:
    if value is None:
        return Target(key, asked, bound, None, None, shown or "not measured")
    # A hair of tolerance: 0.99 as a sum of shares is 0.98999999.
    good = value >= bound - 1e-9 if at_least else value <= bound + 1e-9
    return Target(key, asked, bound, value, good, shown)


def _by_window(windows: Sequence[Window], read: Callable[[Window], float | None]) -> dict[str, float] | None:
    """A figure of every window; None if one is missing, or there are no windows."""
    values = {window.name: read(window) for window in windows}
    known = {name: value for name, value in values.items() if value is not None}
    return known if known and len(known) == len(values) else None


def _least(
    results: Results, windows: Sequence[Window], figure: str, bound: float, key: str, asked: str
) -> Target:
    def read(window: Window) -> float | None:
        found = results.spread(window, OURS, figure)
        return found.median if found else None

    values = _by_window(windows, read)
    if values is None:
        return _judged(key, asked, bound, None, "")
    return _judged(key, asked, bound, min(values.values()), _listed(values, "{:.1%}".format), at_least=True)


def _ratios(results: Results, windows: Sequence[Window], to: str) -> dict[str, float] | None:
    def read(window: Window) -> float | None:
        found = results.ratio(window, OURS, to)
        return found.median if found else None

    return _by_window(windows, read)


def _most(results: Results, windows: Sequence[Window], to: str, bound: float, key: str, asked: str) -> Target:
    values = _ratios(results, windows, to)
    if values is None:
        return _judged(key, asked, bound, None, "")
    return _judged(key, asked, bound, max(values.values()), _listed(values, "{:.2f}".format))


def _ratio_mean(results: Results, windows: Sequence[Window]) -> Target:
    key = "smooth_mean_ratio"
    asked = f"Smooth windows: on average at most {MEAN_RATIO:.2f} times the oracle's GPU-seconds"
    values = _ratios(results, windows, ORACLE)
    if values is None:
        return _judged(key, asked, MEAN_RATIO, None, "")
    value = mean(values.values())
    return _judged(key, asked, MEAN_RATIO, value, f"{value:.2f}")


def _single_peer(results: Results, smooth: Sequence[Window]) -> Target:
    key = "single_peer_ratio"
    asked = (
        f"Smooth windows together: at least {1 - SINGLE_PEER_RATIO:.0%} fewer GPU-seconds than the best peer "
        f"that reaches {SMOOTH_GOAL:.0%} on every one at one setting"
    )
    if not smooth or not all(results.of(window, OURS) for window in smooth):
        return _judged(key, asked, SINGLE_PEER_RATIO, None, "")
    best = results.single_peer(smooth)
    if best is None:
        return _judged(key, asked, SINGLE_PEER_RATIO, None, "no peer reaches it on every one")
    own = results.total(smooth, OURS)
    value = own / results.total(smooth, best)
    shown = f"{_fewer(value)} than `{best}`"
    published = results.single_peer(smooth, PUBLISHED)
    if published is not None and published != best:
        other = own / results.total(smooth, published)
        shown += f"; {_fewer(other)} than `{published}`, the best as published"
    return _judged(key, asked, SINGLE_PEER_RATIO, value, shown)


def _tuned_peer(results: Results) -> Target:
    key = "tuned_peer_ratio"
    asked = (
        f"All windows together: at least {1 - TUNED_PEER_RATIO:.0%} fewer GPU-seconds than the cheapest peer "
        "that meets each window's goal, tuned to that window"
    )
    pairs = [(window, results.tuned_peer(window)) for window in results.windows if results.of(window, OURS)]
    able = [(window, peer) for window, peer in pairs if peer is not None]
    if not able:
        return _judged(key, asked, TUNED_PEER_RATIO, None, "no peer meets a goal" if pairs else "")
    own = sum(results.cost(window, OURS) for window, _ in able)
    value = own / sum(results.cost(window, peer) for window, peer in able)
    each = {w.name: results.cost(w, OURS) / results.cost(w, peer) for w, peer in able}
    shown = f"{_fewer(value)}; as ratios {_listed(each, '{:.2f}'.format)}"
    unable = [window.name for window, peer in pairs if peer is None]
    if unable:
        shown += f"; no peer meets the goal on {', '.join(unable)}"
    return _judged(key, asked, TUNED_PEER_RATIO, value, shown)


@dataclass(frozen=True, slots=True)
class Strain:
    """The cost of a variant on one window."""

    extra_cost: float | None
    """GPU-seconds above the usual, as a share; with another fleet, of the ratio to the oracle."""
    lost_attainment: float


def strain(results: Results, window: Window, variant: Variant) -> Strain | None:
    """The cost of `variant` for ours on `window`, over the seeds both ran with; None if it was not run."""
    usual = {run.seed: run for run in results.of(window, OURS)}
    runs = [run for run in results.of(window, OURS, variant.name) if run.seed in usual]
    if not runs:
        return None
    lost = mean(usual[run.seed].attainment - run.attainment for run in runs)
    cost: float | None = mean(run.gpu_seconds / usual[run.seed].gpu_seconds for run in runs)
    if variant.against_oracle:
        before, after = results.of(window, ORACLE), results.of(window, ORACLE, variant.name)
        cost = None
        if before and after:
            own = mean(run.gpu_seconds for run in runs) / mean(run.gpu_seconds for run in after)
            base = mean(usual[run.seed].gpu_seconds for run in runs) / mean(run.gpu_seconds for run in before)
            cost = own / base
    return Strain(None if cost is None else cost - 1.0, lost)


def _robust(results: Results, variant: Variant) -> list[Target]:
    found = {window.name: strain(results, window, variant) for window in results.windows}
    costs = _by_window(results.windows, lambda w: None if (s := found[w.name]) is None else s.extra_cost)
    lost = _by_window(results.windows, lambda w: None if (s := found[w.name]) is None else s.lost_attainment)
    measure = "GPU-seconds over the oracle's" if variant.against_oracle else "GPU-seconds"
    title = f"{variant.title[0].upper()}{variant.title[1:]}"
    return [
        _judged(
            f"{variant.name}_cost",
            f"{title}: at most {MOST_EXTRA_COST:.0%} more {measure} on any window",
            MOST_EXTRA_COST,
            max(costs.values()) if costs else None,
            _listed({name: 100 * value for name, value in costs.items()}, signed, "%") if costs else "",
        ),
        _judged(
            f"{variant.name}_attainment",
            f"{title}: at most {100 * MOST_LOST_POINTS:.0f} points of attainment lost on any window",
            MOST_LOST_POINTS,
            max(lost.values()) if lost else None,
            _listed({name: -100 * value for name, value in lost.items()}, signed) if lost else "",
        ),
    ]


def signed(value: float) -> str:
    """`value` with its sign and one decimal; zero has no sign."""
    return "0.0" if abs(value) < 0.05 else f"{value:+.1f}"


def _listed(values: Mapping[str, float], form: Callable[[float], str], unit: str = "") -> str:
    return ", ".join(f"{name} {form(value)}{unit}" for name, value in values.items())


def _fewer(ratio: float) -> str:
    return f"{abs(1 - ratio):.0%} {'fewer' if ratio <= 1 else 'more'}"
