"""The priority of each sequence in an engine: its lane first, then its key's fair share.

vLLM takes the waiting sequence with the smallest `priority` first. A lane is a range of priorities. Within a
lane, a priority is the start tag of start-time fair queueing (Goyal, Vin and Cheng, 1996). Each sequence
moves the next tag of its key on by the sequence's tokens, divided by the key's weight. So keys with waiting
sequences get tokens in proportion to their weights, and an idle key saves up no share.

A sequence's tokens are known only at its end. Until then the mean of its key counts. The end corrects its
key's next tag. Prompt tokens from the prefix cache do not count. If a client leaves within a prefill, the
engine core tells the computed tokens, which are charged later.
"""

from dataclasses import dataclass, field
from typing import Any

from serve_app.settings.caller import LANES, Caller, Lane

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
            caller: Whose sequence it is.
            prompt_tokens: The length of the prompt.
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
