"""`advise`: the knobs that would have met the targets on one half of a trace, checked on the other."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from replay.advice.score import Outcome, Score, better, within_noise
from replay.advice.search import BACKGROUND, DEFAULT, Search, Tried, changes, check_names
from replay.defaults import BUDGET_S, GOAL, PROFILE, SEEDS
from replay.profile import Profile, load_profile
from serve_app.settings.knobs import Knobs
from traces import TraceError
from traces.backlog import Backlog
from traces.scale import window
from traces.trace import Chunk, Trace, without_background

_LEAST_PART_S = 600.0
"""A half is at least ten minutes: less does not contain a cold start and its consequences."""
_LEAST_REQUESTS = 100
_CHECK_MARGIN = 1.2
"""The check is expected to take this many times as long as the current knobs took on that half."""


@dataclass(frozen=True, slots=True)
class Part:
    """The requests of a trace from `start_s` on, for `length_s` seconds, as a trace that begins at 0."""

    whole: Trace
    label: str
    start_s: float
    length_s: float | None
    """None: to the end."""

    @property
    def name(self) -> str:
        return f"{self.whole.name}, {self.label}"

    @property
    def block_tokens(self) -> int:
        return self.whole.block_tokens

    def chunks(self) -> Iterator[Chunk]:
        return window(self.whole.chunks(), self.start_s, self.length_s)

    def progress(self) -> float:
        return self.whole.progress()


def halves(trace: Trace) -> tuple[Part, Part, float, bool]:
    """The first and the second half of the time, the seconds of the whole, and whether the whole has requests
    of the lane `background`.

    Raises TraceError for a trace too short to be tuned on, and the errors of reading it.
    """
    requests, duration_s, background = 0, 0.0, False
    for chunk in trace.chunks():
        others = len(without_background(chunk))
        requests += others
        background |= others < len(chunk)
        duration_s = float(chunk.arrival_s[-1])
    if duration_s < 2 * _LEAST_PART_S:
        raise TraceError(
            f"{trace.name}: lasts {duration_s:.0f} s, and tuning on one half and checking on the other takes "
            f"at least {2 * _LEAST_PART_S:.0f} s"
        )
    middle_s = duration_s / 2.0
    first = Part(trace, "first half", 0.0, middle_s)
    before = sum(len(without_background(chunk)) for chunk in first.chunks())
    for count, label in ((before, "first"), (requests - before, "second")):
        if count < _LEAST_REQUESTS:
            raise TraceError(
                f"{trace.name}: its {label} half has {count} requests; at least {_LEAST_REQUESTS} are needed"
            )
    return first, Part(trace, "second half", middle_s, None), duration_s, background


ReplayPart = Callable[[Part, Knobs, int], Outcome]
"""Replays one half of the trace with a configuration and a seed."""


class Verdict(StrEnum):
    """The outcome of a search."""

    CHANGE = "change"
    """The advised knobs meet the goal on both halves, and cost less beyond the noise, or the current
    knobs miss the goal."""
    KEEP = "keep"
    """No knobs were found that are better by more than half a per cent."""
    NOISE = "noise"
    """The advised knobs cost less only within the noise between seeds, or only on one half."""
    NOT_HELD = "not-held"
    """The advised knobs meet the goal on the half they were tuned on, and miss it on the other."""
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
    """Configurations besides the current one; `dropped` of these were replayed with one seed only."""
    dropped: int
    exhausted: bool
    """Whether the search ended because no change helped, rather than by time."""
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
    backlog: Backlog | None = None,
    show: Callable[[Tried], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
    replay_part: ReplayPart | None = None,
) -> Advice:
    """Tune `names` on the half of `trace` where the goal is harder to meet, and check them on the other.

    Args:
        trace: Recorded requests; at least twenty minutes.
        knobs: The current knobs, with the targets to meet.
        profile: The hardware of a replica; an A100 by default.
        cold_start_s: Least and most seconds of a cold start; by default those of the profile.
        seeds: Number of seeds for cold starts and all else that is random.
        goal: Attainment that every seed must reach.
        budget_s: Seconds for the search and the check. The current knobs are replayed in any case.
        names: Knobs to search. Those of the lane `background` are left out if no request has that lane.
        backlog: The backlog in `trace`. Knobs that leave it unfinished at its deadline miss the goal.
        show: Called with every configuration tried.
        say: Called with a sentence for each phase.
        clock: A clock in seconds, for tests.
        replay_part: Replays a half, for tests.

    Raises:
        SettingsError: for a name that is not a knob to search.
        TraceError: for a trace that is too short, or a line of it that is no request.
    """
    began = clock()
    names = check_names(names)
    profile = profile or load_profile(PROFILE)
    first, second, duration_s, background = halves(trace)
    names = names if background else tuple(name for name in names if name not in BACKGROUND)
    replays = replay_part or _replays(profile, cold_start_s, backlog)
    draws = tuple(range(seeds))
    took: dict[Part, float] = {}

    def score(part: Part, candidate: Knobs) -> Score:
        start = clock()
        outcomes = tuple(replays(part, candidate, seed) for seed in draws)
        took[part] = clock() - start
        return Score(outcomes)

    parts = (first, second)
    say(f"the current knobs on both halves of {trace.name}, {seeds} seeds each")
    current = {part: score(part, knobs) for part in parts}
    # Knobs that meet the goal on the harder half are likely to meet it on the other.
    tuned, other = sorted(parts, key=lambda part: current[part].attainment)

    def time_left() -> bool:
        check = _CHECK_MARGIN * took[other]
        return clock() - began + took[tuned] / seeds + check <= budget_s

    say(f"searching on the {tuned.label}{harder(current[tuned], current[other])}")
    search = Search(
        lambda candidate, seed: replays(tuned, candidate, seed),
        knobs, current[tuned], names, draws, goal, time_left, show,
    )  # fmt: skip
    search.run()
    changed = search.best != knobs
    if changed:
        say(f"checking the result on the {other.label}")
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
        duration_s,
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


def _replays(
    profile: Profile, cold_start_s: tuple[float, float] | None, backlog: Backlog | None
) -> ReplayPart:
    from replay.run import replay  # noqa: PLC0415  numba takes a second to import

    def replay_part(part: Part, knobs: Knobs, seed: int) -> Outcome:
        own = None if backlog is None else backlog.since(part.start_s)
        return Outcome.of(
            replay(part, knobs=knobs, profile=profile, cold_start_s=cold_start_s, seed=seed, backlog=own)
        )

    return replay_part
