"""`advise`: the knobs that would have met the targets on one half of a trace, checked on the other."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from loadtests.traces import TraceError
from loadtests.traces.scale import window
from loadtests.traces.trace import Chunk, Trace
from replay.advice.score import Outcome, Score, better, within_noise
from replay.advice.search import DEFAULT, Search, Tried, changes, check_names
from replay.defaults import BUDGET_S, GOAL, PROFILE, SEEDS
from replay.profile import Profile, load_profile
from serve_app.settings.knobs import Knobs

LEAST_PART_S = 600.0
"""A part is at least ten minutes: less does not hold a cold start and what follows from it."""
LEAST_REQUESTS = 100


@dataclass(frozen=True, slots=True)
class Part:
    """The requests of a trace from `start_s` on, for `length_s` seconds; `start_s` becomes 0."""

    whole: Trace
    label: str
    start_s: float
    length_s: float | None
    """None: to the end."""

    @property
    def name(self) -> str:
        """See `Trace`."""
        return f"{self.whole.name}, {self.label}"

    @property
    def block_tokens(self) -> int:
        """See `Trace`."""
        return self.whole.block_tokens

    def chunks(self) -> Iterator[Chunk]:
        """See `Trace`."""
        return window(self.whole.chunks(), self.start_s, self.length_s)

    def progress(self) -> float:
        """See `Trace`; of the whole trace."""
        return self.whole.progress()


@dataclass(frozen=True, slots=True)
class Halves:
    """Both halves of a trace."""

    first: Part
    second: Part
    duration_s: float
    """Length of the whole trace."""


def halves(trace: Trace) -> Halves:
    """The first and the second half of the time.

    Raises TraceError for a trace too short to be tuned on, and whatever reading it raises.
    """
    requests, duration_s = 0, 0.0
    for chunk in trace.chunks():
        requests += len(chunk)
        duration_s = float(chunk.arrival_s[-1])
    if duration_s < 2 * LEAST_PART_S:
        raise TraceError(
            f"{trace.name}: lasts {duration_s:.0f} s, and tuning on one half and checking on the other takes "
            f"at least {2 * LEAST_PART_S:.0f} s"
        )
    middle_s = duration_s / 2.0
    first = Part(trace, "first half", 0.0, middle_s)
    before = sum(len(chunk) for chunk in first.chunks())
    for count, label in ((before, "first"), (requests - before, "second")):
        if count < LEAST_REQUESTS:
            raise TraceError(
                f"{trace.name}: its {label} half has {count} requests; at least {LEAST_REQUESTS} are needed"
            )
    return Halves(first, Part(trace, "second half", middle_s, None), duration_s)


_CHECK_MARGIN = 1.2
"""The check is expected to take this many times as long as the current knobs took on that half."""

ReplayPart = Callable[[Part, Knobs, int], Outcome]
"""Replays one half of the trace with a configuration and a seed."""


class Verdict(StrEnum):
    """The outcome of a search."""

    CHANGE = "change"
    """The advised knobs meet the goal on both halves, and either cost less beyond the noise or the current
    ones do not meet it."""
    KEEP = "keep"
    """No knobs were found that are better by more than half a per cent."""
    NOISE = "noise"
    """Knobs were found that cost less, but within the noise between seeds, or not on the other half."""
    NOT_HELD = "not-held"
    """Knobs were found that meet the goal where they were tuned, and miss it on the other half."""
    NOTHING_MEETS = "nothing-meets"
    """No configuration that was tried meets the goal; the advised one comes closest."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The current and the advised knobs on one half."""

    current: Score
    advised: Score


@dataclass(frozen=True, slots=True)
class Advice:
    """The advised knobs, and the evidence for them."""

    verdict: Verdict
    current: Knobs
    advised: Knobs
    tuned_on: Part
    """The half that was searched on."""
    tuned: Compared
    checked_on: Part
    """The half that was held out."""
    held_out: Compared
    goal: float
    seeds: tuple[int, ...]
    names: tuple[str, ...]
    """The knobs that were searched."""
    tried: int
    """Configurations besides the current one; `dropped` of them were dropped after one seed."""
    dropped: int
    exhausted: bool
    """Whether the search ended before its time was up."""
    duration_s: float
    """Length of the trace."""
    profile: Profile
    spent_s: float

    @property
    def changes(self) -> dict[str, Any]:
        """The knobs to change, with their new values."""
        return changes(self.current, self.advised)


def advise(
    trace: Trace,
    knobs: Knobs,
    *,
    profile: Profile | None = None,
    cold_start_s: tuple[float, float] | None = None,
    seeds: int = SEEDS,
    goal: float = GOAL,
    budget_s: float = BUDGET_S,
    names: Sequence[str] = DEFAULT,
    tell: Callable[[Tried], None] = lambda _: None,
    begin: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
    replay_part: ReplayPart | None = None,
) -> Advice:
    """Tune `names` on the half of `trace` where the goal is harder to meet, and check them on the other.

    Args:
        trace: Recorded requests; at least twenty minutes.
        knobs: The current ones; their SLO targets are the ones to meet.
        profile: The hardware of a replica; an A100 by default.
        cold_start_s: Least and most seconds of a cold start; by default those of the profile.
        seeds: Number of seeds for cold starts and all else that is random.
        goal: Attainment that every seed must reach.
        budget_s: Seconds for the search and the check. The current knobs are replayed in any case.
        names: Knobs to search.
        tell: Called with every configuration tried.
        begin: Called with a sentence for each phase that begins.
        clock: A clock in seconds.
        replay_part: Replays a half; for tests.

    Raises:
        SettingsError: for a name that is not a knob to search.
        TraceError: for a trace that is too short, or a line of it that is no request.
    """
    began = clock()
    names = check_names(names)
    profile = profile or load_profile(PROFILE)
    found = halves(trace)
    replays = replay_part or _replays(profile, cold_start_s)
    draws = tuple(range(seeds))
    took: dict[Part, float] = {}

    def score(part: Part, candidate: Knobs) -> Score:
        start = clock()
        outcomes = tuple(replays(part, candidate, seed) for seed in draws)
        took[part] = clock() - start
        return Score(outcomes)

    parts = (found.first, found.second)
    begin(f"the current knobs on both halves of {trace.name}, {seeds} seeds each")
    current = {part: score(part, knobs) for part in parts}
    # What meets the goal where that is harder is more likely to meet it elsewhere.
    tuned, other = sorted(parts, key=lambda part: current[part].attainment)

    def time_left() -> bool:
        check = _CHECK_MARGIN * took[other]
        return clock() - began + took[tuned] / seeds + check <= budget_s

    begin(f"searching on the {tuned.label}{harder(current[tuned], current[other])}")
    search = Search(
        lambda candidate, seed: replays(tuned, candidate, seed),
        knobs, current[tuned], names, draws, goal, time_left, tell,
    )  # fmt: skip
    search.run()
    changed = search.best != knobs
    if changed:
        begin(f"checking the result on the {other.label}")
    on_tuned = Compared(current[tuned], search.best_score)
    on_other = Compared(current[other], score(other, search.best) if changed else current[other])
    return Advice(
        judge(on_tuned, on_other, goal, changed=changed),
        knobs,
        search.best,
        tuned,
        on_tuned,
        other,
        on_other,
        goal,
        draws,
        names,
        search.tried,
        search.dropped,
        search.exhausted,
        found.duration_s,
        profile,
        clock() - began,
    )


def harder(tuned: Score, other: Score) -> str:
    """The reason for choosing that half; empty if both attain the same, when the first is taken."""
    return ", where the current knobs attain less" if tuned.attainment < other.attainment else ""


def judge(tuned: Compared, held_out: Compared, goal: float, *, changed: bool) -> Verdict:
    """The verdict on the advised knobs by their scores on both halves."""
    if not tuned.advised.meets(goal):
        return Verdict.NOTHING_MEETS
    if not changed:
        return Verdict.KEEP
    if not held_out.advised.meets(goal):
        return Verdict.NOT_HELD
    if not tuned.current.meets(goal) or not held_out.current.meets(goal):
        return Verdict.CHANGE
    cheaper = better(held_out.advised, held_out.current, goal)
    if not cheaper or within_noise(held_out.advised, held_out.current):
        return Verdict.NOISE
    return Verdict.CHANGE


def _replays(profile: Profile, cold_start_s: tuple[float, float] | None) -> ReplayPart:
    from replay.run import replay  # noqa: PLC0415  numba takes a second to import

    def replay_part(part: Part, knobs: Knobs, seed: int) -> Outcome:
        return Outcome.of(replay(part, knobs=knobs, profile=profile, cold_start_s=cold_start_s, seed=seed))

    return replay_part
