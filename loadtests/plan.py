"""From a scenario to its requests. Equal scenarios and seeds give equal plans.

Arrivals, kinds, lengths, prefixes and leaving clients each have a stream of random numbers of their own, and
so have the turns of conversations, their pauses and the lengths of later turns. A change of the lengths, for
example, leaves every intended time as it was.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from loadtests.kinds import Between, Conversation, Geometric, Kind, Length, LogNormal, Think, Turns
from loadtests.scenario import Arrivals, Burst, Idle, Ramp, Recorded, Scenario, Steady, Wave
from serve_app.settings.settings_error import SettingsError
from traces import TraceError, open_trace
from traces.trace import Floats, Ints

MOST_REQUESTS = 2_000_000
"""A plan is held in memory: some 200 bytes per request."""
_CLOSED_CHUNK = 256


@dataclass(frozen=True, slots=True)
class Planned:
    """A request before it is sent."""

    index: int
    """Its place in the plan, from 0; its prompt is drawn from the seed and this."""
    at_s: float
    """The intended time, seconds after the run's start. 0 for a later turn of a conversation, whose time
    depends on the answer before it."""
    kind: str
    model: str | None
    """None: the only one that generates."""
    api: str
    """`completions` or `chat`."""
    prompt_tokens: int
    """The whole prompt. For a later turn, if each answer has as many tokens as planned."""
    output_tokens: int
    prefix_tokens: int = 0
    """The first tokens of the prompt, which other requests of the kind share."""
    prefix: int = 0
    """The number of that prefix within the kind."""
    leave_after_tokens: int | None = None
    leave_after_s: float | None = None
    session: int | None = None
    """The conversation, by the `index` of its first turn; None for a request without one."""
    turn: int = 0
    """The turn of the conversation, from 1; 0 without one."""
    history_tokens: int = 0
    """Tokens between the prefix and the new message: earlier messages and their answers."""
    think_s: float = 0.0
    """From the end of the answer before to the intended time."""
    following: Planned | None = None
    """The next turn of the conversation."""

    @property
    def own_tokens(self) -> int:
        """Tokens that neither the prefix nor an earlier turn has."""
        return self.prompt_tokens - self.prefix_tokens - self.history_tokens

    def turns(self) -> Iterator[Planned]:
        """This turn and the turns after it."""
        turn: Planned | None = self
        while turn is not None:
            yield turn
            turn = turn.following


def draw_whole(given: Length | Turns, draws: np.random.Generator) -> int:
    """A number of tokens or turns."""
    if isinstance(given, Between):
        return int(draws.integers(given.least, given.most + 1))
    if isinstance(given, LogNormal):
        return round(_log_normal(given.median, given.sigma, given.least, given.most, draws))
    if isinstance(given, Geometric):
        return min(int(draws.geometric(1 / given.mean)), given.most)
    return given


def draw_pause_s(given: Think, draws: np.random.Generator) -> float:
    """A pause, seconds."""
    if isinstance(given, Between):
        return float(draws.uniform(given.least, given.most))
    if isinstance(given, LogNormal):
        return _log_normal(given.median, given.sigma, given.least, given.most, draws)
    return given


def _log_normal(median: float, sigma: float, least: float, most: float, draws: np.random.Generator) -> float:
    return min(max(median * math.exp(sigma * draws.standard_normal()), least), most)


class Planner:
    """Draws the requests of one scenario; `Arrivals` give their times."""

    def __init__(self, scenario: Scenario) -> None:
        self._kinds = scenario.requests
        shares = np.array([kind.share for kind in scenario.requests])
        self._shares = shares / shares.sum()
        seeds = np.random.SeedSequence(scenario.seed).spawn(8)
        self.times, self._picks, self._lengths, self._leaves, self._prefixes, *later = map(
            np.random.default_rng, seeds
        )
        self._turns, self._pauses, self._later_lengths = later
        self.made = 0
        """Requests so far, each turn of a conversation counted."""

    def requests(self, at_s: Floats, lengths: tuple[Ints, Ints] | None = None) -> list[Planned]:
        """One request, or the first turn of a conversation, for each time.

        A trace gives its own `lengths` of prompts and outputs.
        """
        picks = self._picks.choice(len(self._kinds), size=len(at_s), p=self._shares)
        made = []
        for place, (when, which) in enumerate(zip(at_s.tolist(), picks.tolist(), strict=True)):
            kind = self._kinds[which]
            prompt = draw_whole(kind.prompt_tokens, self._lengths)
            output = draw_whole(kind.output_tokens, self._lengths)
            if lengths is not None:
                prompt, output = int(lengths[0][place]), int(lengths[1][place])
            if kind.conversation is not None:
                prompt += kind.shared_prefix_tokens
            leave_tokens, leave_s = self._leave(kind)
            one = Planned(
                index=self._index(),
                at_s=round(when, 6),
                kind=kind.kind,
                model=kind.model,
                api=kind.api,
                prompt_tokens=prompt,
                output_tokens=output,
                # The last token of a prompt is its own, or the prefix cache would leave nothing to compute.
                prefix_tokens=min(kind.shared_prefix_tokens, prompt - 1),
                prefix=int(self._prefixes.integers(kind.prefixes)),
                leave_after_tokens=leave_tokens,
                leave_after_s=leave_s,
            )
            made.append(one if kind.conversation is None else self._add_turns(kind, kind.conversation, one))
        return made

    def _add_turns(self, kind: Kind, conversation: Conversation, first: Planned) -> Planned:
        turns = [replace(first, session=first.index, turn=1)]
        for number in range(2, draw_whole(conversation.turns, self._turns) + 1):
            before = turns[-1]
            leave_tokens, leave_s = self._leave(kind)
            history = before.prompt_tokens - before.prefix_tokens + before.output_tokens
            message = draw_whole(kind.prompt_tokens, self._later_lengths)
            turns.append(
                replace(
                    before,
                    index=self._index(),
                    at_s=0.0,
                    turn=number,
                    history_tokens=history,
                    prompt_tokens=before.prefix_tokens + history + message,
                    output_tokens=draw_whole(kind.output_tokens, self._later_lengths),
                    think_s=round(draw_pause_s(conversation.think_s, self._pauses), 6),
                    leave_after_tokens=leave_tokens,
                    leave_after_s=leave_s,
                )
            )
        following = None
        for turn in reversed(turns):
            following = replace(turn, following=following)
        return following or first

    def _index(self) -> int:
        self.made += 1
        return self.made - 1

    def _leave(self, kind: Kind) -> tuple[int | None, float | None]:
        """After how many tokens or seconds the client of the next request leaves, if it does."""
        # Drawn whether it is used or not, so that the share changes who leaves and nothing else.
        if kind.leave is None or self._leaves.random() >= kind.leave.share:
            return None, None
        return kind.leave.after_tokens, kind.leave.after_s


def plan(scenario: Scenario, folder: Path, trace: str | None = None) -> tuple[tuple[Planned, ...], float]:
    """The requests of an open loop, by their intended times, and how long they come for, in seconds.

    A conversation stands there with its first turn.

    Args:
        scenario: With `arrivals`.
        folder: Of the scenario's file; names of traces are relative to it.
        trace: A file in place of those that `shape: trace` names.

    Raises:
        SettingsError: for a trace that cannot be read, and for more requests than a plan holds.
    """
    planner = Planner(scenario)
    requests: list[Planned] = []
    start_s = 0.0
    for _ in range(scenario.repeat):
        for stretch in scenario.arrivals:
            times, lengths = _arrivals(stretch, planner.times, folder, trace)
            _check_number(planner.made + len(times))
            requests += planner.requests(times + start_s, lengths)
            _check_number(planner.made)
            start_s += stretch.for_s * (stretch.time if isinstance(stretch, Recorded) else 1.0)
    if not requests:
        raise SettingsError(["arrivals: no request came of them; raise a rate, or for_s"])
    return tuple(sorted(requests, key=lambda request: request.at_s)), start_s


def endless(scenario: Scenario) -> Iterator[Planned]:
    """Requests for a closed loop, without times of their own."""
    planner = Planner(scenario)
    while True:
        yield from planner.requests(np.zeros(_CLOSED_CHUNK))


def _check_number(requests: float) -> None:
    if requests > MOST_REQUESTS:
        raise SettingsError([f"arrivals: must come to at most {MOST_REQUESTS:,} requests"])


def _arrivals(
    stretch: Arrivals, draws: np.random.Generator, folder: Path, trace: str | None
) -> tuple[Floats, tuple[Ints, Ints] | None]:
    """Times from the start of the stretch on, and the lengths where it has its own."""
    match stretch:
        case Idle():
            return np.empty(0), None
        case Burst():
            return np.arange(stretch.requests, dtype=np.float64) * (stretch.over_s / stretch.requests), None
        case Recorded():
            return _recorded(stretch, folder, trace)
        case Steady():
            return _unit_times(stretch.rate * stretch.for_s, stretch.spacing, draws) / stretch.rate, None
        case Ramp():
            units = _unit_times((stretch.rate + stretch.to_rate) / 2 * stretch.for_s, stretch.spacing, draws)
            return _on_ramp(stretch, units), None
        case Wave():
            return _on_wave(stretch, draws), None


def _unit_times(expected: float, spacing: str, draws: np.random.Generator) -> Floats:
    """Arrivals of a process with one per second, up to `expected`: other rates stretch its time.

    A Poisson process with a rate that changes is one of rate 1 on the time axis of the rate's integral
    (Cinlar, "Introduction to Stochastic Processes", 1975, 4.7).
    """
    _check_number(expected / 2)
    if spacing == "even":
        return np.arange(0.5, expected, 1.0, dtype=np.float64)
    # Six standard deviations more than are expected, so that one draw is enough.
    times = np.cumsum(draws.exponential(size=int(expected + 6 * math.sqrt(expected) + 10)))
    return times[times < expected]


def _on_ramp(stretch: Ramp, units: Floats) -> Floats:
    """The times at which the integral rate * t + slope * t^2 / 2 reaches each of `units`."""
    slope = (stretch.to_rate - stretch.rate) / stretch.for_s
    root = np.sqrt(np.maximum(stretch.rate**2 + 2 * slope * units, 0.0))
    # 2 u / (rate + root) rather than (root - rate) / slope, which loses its digits as the slope nears 0.
    times: Floats = np.minimum(2 * units / (stretch.rate + root), stretch.for_s)
    return times


def _on_wave(stretch: Wave, draws: np.random.Generator) -> Floats:
    """As `_on_ramp`; the integral has no inverse in closed form, so it is looked up on a fine grid."""
    turn = 2 * math.pi / stretch.period_s
    steps = int(max(1000, min(200_000, 200 * stretch.for_s / stretch.period_s)))
    grid = np.linspace(0.0, stretch.for_s, steps + 1)
    # sin(x - pi / 2) = -cos(x)
    integral = stretch.rate * (grid - stretch.swing * np.sin(turn * grid) / turn)
    return np.interp(_unit_times(float(integral[-1]), stretch.spacing, draws), integral, grid)


def _recorded(stretch: Recorded, folder: Path, trace: str | None) -> tuple[Floats, tuple[Ints, Ints] | None]:
    if trace is None and stretch.file is None:
        raise SettingsError(["arrivals: a trace without `file`; name one there, or with --trace"])
    path = Path(trace) if trace is not None else folder / str(stretch.file)
    try:
        recorded = open_trace(
            path, start_s=stretch.start_s, duration_s=stretch.for_s, time=stretch.time, rate=stretch.rate
        )
        chunks = list(recorded.chunks())
    except TraceError as error:
        raise SettingsError([str(error)]) from None
    for sentence in recorded.left_out():
        print(f"tideserve: {sentence}", file=sys.stderr)

    def scale(tokens: list[Ints], most: int) -> Ints:
        return np.clip(np.round(np.concatenate(tokens) * stretch.tokens).astype(np.int64), 1, most)

    prompts = scale([chunk.input_tokens for chunk in chunks], stretch.most_prompt_tokens)
    outputs = scale([chunk.output_tokens for chunk in chunks], stretch.most_output_tokens)
    return np.concatenate([chunk.arrival_s for chunk in chunks]), (prompts, outputs)
