"""The targets, set before the policy was tuned, and whether they are met."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import mean

from benchmarks.autoscaling.results import (
    BURSTY_GOAL,
    BURSTY_TTFT_OK,
    SMOOTH_GOAL,
    Results,
    by_window,
)
from benchmarks.autoscaling.runs import VARIANTS, Run, Variant
from benchmarks.autoscaling.windows import Window
from benchmarks.peers.policies import PUBLISHED
from replay.defaults import ORACLE, OURS, STATIC

MEAN_RATIO, WORST_RATIO = 1.25, 1.40
STATIC_RATIO = 0.70
SINGLE_PEER_RATIO = 0.60
TUNED_PEER_RATIO = 0.90
MOST_EXTRA_COST = 0.10
MOST_LOST_POINTS = 0.02
_HAIR = 1e-9
"""0.99 as a sum of shares is 0.98999999."""


@dataclass(frozen=True, slots=True)
class Target:
    """One target, and whether it is met."""

    asked: str
    value: float | None
    """None if it was not measured."""
    met: bool | None
    shown: str
    """The value for people, with the windows behind it."""


def targets(results: Results) -> list[Target]:
    """Every target with its value."""
    smooth, bursty = results.smooth, results.bursty
    ratios = by_window(smooth, lambda window: results.ratio(window, OURS, ORACLE))
    times = "times the oracle's GPU-seconds"
    found = [
        _at_least(
            f"Smooth windows: at least {SMOOTH_GOAL:.0%} attainment on every one",
            SMOOTH_GOAL, by_window(smooth, lambda window: results.spread(window, OURS, "attainment")),
        ),
        _at_most(f"Smooth windows: on average at most {MEAN_RATIO:.2f} {times}", MEAN_RATIO, ratios, mean),
        _at_most(f"Smooth windows: none above {WORST_RATIO:.2f} {times}", WORST_RATIO, ratios),
        _at_least(
            f"Bursty windows: at least {BURSTY_GOAL:.0%} attainment on every one",
            BURSTY_GOAL, by_window(bursty, lambda window: results.spread(window, OURS, "attainment")),
        ),
        _at_least(
            f"Bursty windows: at least {BURSTY_TTFT_OK:.0%} of requests within the TTFT target",
            BURSTY_TTFT_OK, by_window(bursty, lambda window: results.spread(window, OURS, "ttft_ok")),
        ),
        _at_most(
            f"Bursty windows: at most {STATIC_RATIO:.2f} times the GPU-seconds of the least static fleet",
            STATIC_RATIO, by_window(bursty, lambda window: results.ratio(window, OURS, STATIC)),
        ),
        _single_peer(results),
        _tuned_peer(results),
    ]  # fmt: skip
    return found + [target for variant in VARIANTS for target in _robustness(results, variant)]


def met(found: Iterable[Target]) -> bool:
    """Whether all were measured and met."""
    return all(target.met for target in found)


Values = Mapping[str, float] | None


def _at_least(asked: str, bound: float, values: Values) -> Target:
    if values is None:
        return Target(asked, None, None, "not measured")
    least = min(values.values())
    return Target(asked, least, least >= bound - _HAIR, _listed(values, "{:.1%}".format))


def _at_most(
    asked: str,
    bound: float,
    values: Values,
    of: Callable[[Iterable[float]], float] = max,
    form: Callable[[float], str] = "{:.2f}".format,
) -> Target:
    if values is None:
        return Target(asked, None, None, "not measured")
    value = of(values.values())
    return Target(asked, value, value <= bound + _HAIR, form(value) if of is mean else _listed(values, form))


def _single_peer(results: Results) -> Target:
    smooth = results.smooth
    asked = (
        f"Smooth windows together: at least {1 - SINGLE_PEER_RATIO:.0%} fewer GPU-seconds than the best peer "
        f"that reaches {SMOOTH_GOAL:.0%} on every one at one setting"
    )
    if not smooth or not all(results.of(window, OURS) for window in smooth):
        return Target(asked, None, None, "not measured")
    best = results.cheapest_peer(smooth)
    if best is None:
        return Target(asked, None, None, "no peer reaches it on every one")
    own = results.cost(smooth, OURS)
    value = own / results.cost(smooth, best)
    shown = f"{_fewer(value)} than `{best}`"
    published = results.cheapest_peer(smooth, PUBLISHED)
    if published is not None and published != best:
        shown += (
            f"; {_fewer(own / results.cost(smooth, published))} than `{published}`, the best as published"
        )
    return Target(asked, value, value <= SINGLE_PEER_RATIO + _HAIR, shown)


def _tuned_peer(results: Results) -> Target:
    asked = (
        f"All windows together: at least {1 - TUNED_PEER_RATIO:.0%} fewer GPU-seconds than the cheapest peer "
        "that meets each window's goal, tuned to that window"
    )
    peers = {w: results.cheapest_peer([w]) for w in results.windows if results.of(w, OURS)}
    costs = {w: (results.cost([w], OURS), results.cost([w], peer)) for w, peer in peers.items() if peer}
    if not costs:
        return Target(asked, None, None, "no peer meets a goal" if peers else "not measured")
    value = sum(own for own, _ in costs.values()) / sum(other for _, other in costs.values())
    each = {window.name: own / other for window, (own, other) in costs.items()}
    shown = f"{_fewer(value)}; as ratios {_listed(each, '{:.2f}'.format)}"
    unable = [window.name for window in peers if window not in costs]
    if unable:
        shown += f"; no peer meets the goal on {', '.join(unable)}"
    return Target(asked, value, value <= TUNED_PEER_RATIO + _HAIR, shown)


def _robustness(results: Results, variant: Variant) -> list[Target]:
    costs = by_window(results.windows, lambda window: _extra_cost(results, window, variant))
    lost = by_window(results.windows, lambda window: _lost_attainment(results, window, variant))
    measure = "GPU-seconds over the oracle's" if variant.against_oracle else "GPU-seconds"
    title = f"{variant.title[0].upper()}{variant.title[1:]}"
    return [
        _at_most(
            f"{title}: at most {MOST_EXTRA_COST:.0%} more {measure} on any window",
            MOST_EXTRA_COST, costs, form=lambda value: f"{_signed(100 * value)}%",
        ),
        _at_most(
            f"{title}: at most {100 * MOST_LOST_POINTS:.0f} points of attainment lost on any window",
            MOST_LOST_POINTS, lost, form=lambda value: _signed(-100 * value),
        ),
    ]  # fmt: skip


def _pairs(results: Results, window: Window, variant: Variant, policy: str = OURS) -> list[tuple[Run, Run]]:
    """The runs of a policy under `variant`, each with its usual run of the same seed."""
    usual = {run.seed: run for run in results.of(window, policy)}
    return [(run, usual[run.seed]) for run in results.of(window, policy, variant.name) if run.seed in usual]


def _lost_attainment(results: Results, window: Window, variant: Variant) -> float | None:
    pairs = _pairs(results, window, variant)
    return mean(usual.attainment - run.attainment for run, usual in pairs) if pairs else None


def _extra_cost(results: Results, window: Window, variant: Variant) -> float | None:
    """GPU-seconds above the usual, as a share; with another fleet, of the ratio to the oracle."""
    pairs = _pairs(results, window, variant)
    oracles = _pairs(results, window, variant, ORACLE)
    if not pairs or (variant.against_oracle and not oracles):
        return None
    cost = mean(run.gpu_seconds / usual.gpu_seconds for run, usual in pairs)
    if variant.against_oracle:
        cost /= mean(run.gpu_seconds / usual.gpu_seconds for run, usual in oracles)
    return cost - 1.0


def _signed(value: float) -> str:
    """`value` with its sign and one decimal; zero has no sign."""
    return "0.0" if abs(value) < 0.05 else f"{value:+.1f}"


def _listed(values: Mapping[str, float], form: Callable[[float], str]) -> str:
    return ", ".join(f"{name} {form(value)}" for name, value in values.items())


def _fewer(ratio: float) -> str:
    return f"{abs(1 - ratio):.0%} {'fewer' if ratio <= 1 else 'more'}"
