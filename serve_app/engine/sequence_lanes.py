"""The lane of each sequence of an engine, its priority, and the statistics of a step by lane.

vLLM takes the waiting sequence with the smallest `priority` first. A lane is a range of priorities. Within a
lane, a priority is the start tag of start-time fair queueing (Goyal, Vin and Cheng, 1996). Each sequence
moves the next tag of its key on by the sequence's tokens, divided by the key's weight. So keys with waiting
sequences get tokens in proportion to their weights, and an idle key saves up no share.

A sequence's tokens are known only at its end. Until then the mean of its key counts. The end corrects its
key's next tag. Prompt tokens from the prefix cache do not count. If a client leaves within a prefill, the
engine core tells the computed tokens, which are charged later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.stats import IterationStats

from serve_app.patches.vllm import Method, wrap_method
from serve_app.settings.caller import ANYONE, LANES, Caller, Lane

_SPAN = 1 << 60
"""The priorities of a lane. vLLM's are 64-bit integers, and a tag is in tokens: at 100,000 tokens per second
and a weight of 0.01, a lane that is never idle reaches the bound after 3,600 years."""
LANE_KNOB = "tideserve_lane_knob"
"""The key in a sequence's `SamplingParams.extra_args` for `Knobs.lane_knob`."""
BACKGROUND = LANES.index("background") * _SPAN
"""The smallest priority of the lane `background`."""


def lane_of(priority: int) -> Lane:
    """Return the lane of a priority; any priority outside the lanes' counts as the nearest lane's."""
    return LANES[min(max(priority // _SPAN, 0), len(LANES) - 1)]


_FIRST_GUESS = 200
"""The generated tokens of a key's first sequence, before any has ended. Without a guess, all sequences of a
new key would begin at nearly the same tag, however many they are."""


@dataclass(slots=True)
class _Account:
    """One key in one lane."""

    epoch: int
    tag: float = 0.0
    """The start tag of its newest sequence."""
    next_tag: float = 0.0
    ended: int = 1
    generated: int = _FIRST_GUESS
    """The tokens of its `ended` sequences. The first of them stands for those to come."""


@dataclass(slots=True)
class _Shares:
    """The keys of one lane. Tags begin at 0 whenever the lane becomes busy, in a new `epoch`."""

    first: int
    """The lane's smallest priority."""
    accounts: dict[str, _Account] = field(default_factory=dict)
    epoch: int = 0
    virtual_time: float = 0.0
    """The largest tag of a sequence that has run and ended: where a key that comes back begins."""
    unfinished: int = 0


@dataclass(slots=True)
class Charge:
    """The tokens for which a sequence has been charged in advance."""

    shares: _Shares
    account: _Account
    tag: float
    tokens: float
    weight: float

    @property
    def priority(self) -> int:
        """vLLM's priority: smaller goes first."""
        return self.shares.first + min(int(self.tag), _SPAN - 1)

    def settle(self, computed_tokens: int, generated_tokens: int) -> None:
        """Replace the charge by the tokens that the sequence has used, once, when the sequence has ended.

        Args:
            computed_tokens: The prompt tokens that the engine computed; 0 if the sequence never ran, or
                ended within its prefill.
            generated_tokens: The tokens that the engine generated.
        """
        lane, account = self.shares, self.account
        account.next_tag += (computed_tokens + generated_tokens - self.tokens) / self.weight
        if computed_tokens or generated_tokens:
            account.ended += 1
            account.generated += generated_tokens
            lane.virtual_time = max(lane.virtual_time, self.tag)
        lane.unfinished -= 1
        if not lane.unfinished:
            lane.epoch += 1
            lane.virtual_time = 0.0

    def add(self, computed_tokens: int) -> None:
        """Charge prompt tokens that became known after the sequence had ended."""
        self.account.next_tag += computed_tokens / self.weight


class FairShare:
    """Gives the sequences of one engine their priorities."""

    def __init__(self) -> None:
        self._lanes = {lane: _Shares(number * _SPAN) for number, lane in enumerate(LANES)}

    def charge(self, caller: Caller, prompt_tokens: int, max_tokens: int) -> Charge:
        """Charge a sequence that arrives to its key. Settle the charge at the sequence's end.

        Args:
            max_tokens: The bound on its generated tokens.
        """
        lane = self._lanes[caller.lane]
        account = lane.accounts.get(caller.key)
        if account is None:
            account = lane.accounts[caller.key] = _Account(lane.epoch)
        elif account.epoch != lane.epoch:
            account.epoch, account.tag, account.next_tag = lane.epoch, 0.0, 0.0
        tokens = prompt_tokens + min(max_tokens, account.generated / account.ended)
        begin = max(account.next_tag, lane.virtual_time)
        # Corrections may move a tag back, but no sequence of a key overtakes an older one.
        account.tag = max(account.tag, begin)
        account.next_tag = begin + tokens / caller.weight
        lane.unfinished += 1
        return Charge(lane, account, account.tag, tokens, caller.weight)


def used_tokens(state: Any) -> tuple[int, int]:
    """Return the computed and the generated tokens of a sequence, from vLLM's state of it."""
    if state.is_prefilling or state.stats is None:  # it never ran, or statistics are off
        return 0, 0
    return max(0, state.prompt_len - state.num_cached_tokens), state.stats.num_generation_tokens


_MOST_LEFT = 1024


class SequenceLanes:
    """Gives sequences their priorities, and divides the statistics of a step by lane.

    vLLM's statistics of a step have one list of latencies for all sequences. So the outputs of each lane are
    processed with statistics of their own. While all sequences are in one lane, nothing is sorted.
    """

    def __init__(self) -> None:
        self._shares = FairShare()
        self._lanes: dict[str, Lane] = {}
        self._unfinished = dict.fromkeys(LANES, 0)
        self._left: dict[str, Charge] = {}
        """The sequences that ended within their prefill, until the engine core tells what it computed."""
        self._iteration: IterationStats | None = None
        """vLLM's own statistics of the step whose `_parts` are kept."""
        self._parts: dict[Lane, IterationStats] = {}

    def lane_of(self, sequence: str) -> Lane:
        """Return the lane of an unfinished sequence, by vLLM's id."""
        return self._lanes.get(sequence, ANYONE.lane)

    def begin(self, caller: Caller, request: Any, state: Any, lane_knob: float | None = None) -> Charge:
        """Set the priority of a sequence that vLLM has registered. Call `end` with the result.

        Args:
            caller: Whose sequence it is. A `priority` in the client's body or headers does not count.
            request: The message to the engine core, which has not been sent yet.
            state: The front end's state of the sequence.
            lane_knob: What the knobs say of its lane; see `Knobs.lane_knob`. None changes nothing.
        """
        params = request.sampling_params
        most = 0 if params is None else params.max_tokens or 0
        charge = self._shares.charge(caller, state.prompt_len or 0, most)
        request.priority = charge.priority
        if params is not None and (lane_knob is not None or LANE_KNOB in (params.extra_args or ())):
            # Replaces a value of the client.
            params.extra_args = {**(params.extra_args or {}), LANE_KNOB: lane_knob}
        self._lanes[state.request_id] = caller.lane
        self._unfinished[caller.lane] += 1
        return charge

    def end(self, state: Any, charge: Charge) -> None:
        """Note that a sequence has ended, for any reason."""
        charge.settle(*used_tokens(state))
        if state.is_prefilling:
            if len(self._left) >= _MOST_LEFT:  # the core has refused some, and tells nothing of those
                self._left.pop(next(iter(self._left)))
            self._left[state.request_id] = charge
        self._unfinished[self._lanes.pop(state.request_id)] -= 1

    def divide_statistics(self, engine: AsyncLLM) -> None:
        """Have the front end of `engine` process the outputs of each lane with its own statistics."""
        wrap_method(engine.output_processor, "process_outputs", self._divided)

    def take(self, iteration: IterationStats | None) -> Mapping[Lane, IterationStats]:
        """Return the statistics of the last step by lane. `iteration` is vLLM's own."""
        parts, self._parts = self._parts, {}
        return parts or ({} if iteration is None else {ANYONE.lane: iteration})

    @staticmethod
    def fill(iteration: IterationStats | None, parts: Mapping[Lane, IterationStats]) -> None:
        """Add the statistics of all lanes to vLLM's own, which other loggers read after this one."""
        for part in parts.values():
            if iteration is not None and part is not iteration:
                _add(iteration, part)

    def _divided(self, process: Method) -> Method:
        def wrapped(outputs: list[Any], at: Any, iteration: IterationStats | None, **more: Any) -> Any:
            for output in outputs if self._left else ():
                charge = self._left.pop(output.request_id, None)
                stats = getattr(output, "prefill_stats", None)  # which not all releases have
                if charge is not None and stats is not None:
                    charge.add(stats.num_computed_tokens)
            if iteration is None:
                return process(outputs, at, iteration, **more)
            if (
                iteration is not self._iteration
            ):  # vLLM processes the outputs of a large step in several calls
                self._iteration, self._parts = iteration, {}
            present = [lane for lane, count in self._unfinished.items() if count]
            by_lane: dict[Lane, list[Any]] = {}
            if len(present) < 2:
                by_lane[present[0] if present else ANYONE.lane] = outputs
            else:
                for output in outputs:
                    by_lane.setdefault(self.lane_of(output.request_id), []).append(output)
            done = [
                process(some, at, self._parts.setdefault(lane, IterationStats()), **more)
                for lane, some in by_lane.items()
            ]
            for other in done[1:]:
                done[0].request_outputs.extend(other.request_outputs)
                done[0].reqs_to_abort.extend(other.reqs_to_abort)
            return done[0]

        return wrapped


def _add(total: Any, part: Any) -> None:
    """Add counts, lists, and records of counts. The time of a step is a float, and stays."""
    for name, value in vars(part).items():
        if isinstance(value, list):
            getattr(total, name).extend(value)
        elif isinstance(value, int):
            setattr(total, name, getattr(total, name) + value)
        elif hasattr(value, "__dict__"):
            _add(getattr(total, name), value)
