"""Runs by window, policy and variant: medians over seeds, and the spread."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import median

from benchmarks.autoscaling.runs import BASE, Run
from benchmarks.autoscaling.windows import Window
from replay.advice.score import Spread
from replay.defaults import ORACLE, OURS, STATIC

SMOOTH_GOAL = 0.99
BURSTY_GOAL = 0.90
BURSTY_TTFT_OK = 0.97


class Results:
    """All runs by window, policy and variant."""

    def __init__(self, windows: Sequence[Window], runs: Iterable[Run]) -> None:
        self.windows, self.runs = list(windows), list(runs)
        self.smooth = [window for window in self.windows if window.smooth]
        self.bursty = [window for window in self.windows if not window.smooth]
        self._by: dict[tuple[str, str, str], dict[int, Run]] = defaultdict(dict)
        for run in self.runs:
            self._by[run.window, run.policy, run.variant][run.seed] = run

    def of(self, window: Window, policy: str, variant: str = BASE.name) -> list[Run]:
        """One policy's runs on one window, by seed; none if it was not run."""
        found = self._by.get((window.name, policy, variant), {})
        return [found[seed] for seed in sorted(found)]

    def spread(self, window: Window, policy: str, figure: str, variant: str = BASE.name) -> Spread | None:
        """The spread of one figure over a policy's runs."""
        runs = self.of(window, policy, variant)
        return Spread.of([float(getattr(run, figure)) for run in runs]) if runs else None

    def ratio(self, window: Window, policy: str, to: str) -> Spread | None:
        """The GPU-seconds of one policy over another's, by seed if the other ran with that seed."""
        runs, others = self.of(window, policy), self.of(window, to)
        if not runs or not others:
            return None
        by_seed = {run.seed: run.gpu_seconds for run in others}
        usual = median(by_seed.values())
        return Spread.of([run.gpu_seconds / by_seed.get(run.seed, usual) for run in runs])

    def peers(self) -> list[str]:
        """The peers' policies that ran; static fleets are not among them."""
        names = dict.fromkeys(run.policy for run in self.runs if run.variant == BASE.name)
        return [name for name in names if name not in (OURS, ORACLE, STATIC) and family(name) != STATIC]

    def meets_goal(self, window: Window, policy: str) -> bool:
        """Whether the medians of a policy reach the goals of that kind of window."""
        attainment = self.spread(window, policy, "attainment")
        ttft_ok = self.spread(window, policy, "ttft_ok")
        if attainment is None or ttft_ok is None:
            return False
        if window.smooth:
            return attainment.median >= SMOOTH_GOAL
        return attainment.median >= BURSTY_GOAL and ttft_ok.median >= BURSTY_TTFT_OK

    def cheapest_peer(self, windows: Sequence[Window], among: Iterable[str] | None = None) -> str | None:
        """The peer that meets the goal on all of `windows` at one setting, for the fewest GPU-seconds."""
        names = self.peers() if among is None else [name for name in self.peers() if name in set(among)]
        able = [name for name in names if all(self.meets_goal(window, name) for window in windows)]
        return min(able, key=lambda name: self.cost(windows, name), default=None)

    def cost(self, windows: Iterable[Window], policy: str) -> float:
        """The median GPU-seconds of a policy that was run, summed over `windows`."""
        return sum(median(run.gpu_seconds for run in self.of(window, policy)) for window in windows)


def by_window(
    windows: Sequence[Window], read: Callable[[Window], Spread | float | None]
) -> dict[str, float] | None:
    """A figure (of a spread, its median) by window; None if a window lacks it, or there are no windows."""
    found: dict[str, float] = {}
    for window in windows:
        value = read(window)
        if value is not None:
            found[window.name] = value.median if isinstance(value, Spread) else value
    return found if found and len(found) == len(windows) else None


def family(policy: str) -> str:
    """The policy without its setting: `hpa:ongoing` of `hpa:ongoing=10`."""
    name, _, setting = policy.partition(":")
    key, equals, _ = setting.partition("=")
    return f"{name}:{key}" if equals and name == "hpa" else name
