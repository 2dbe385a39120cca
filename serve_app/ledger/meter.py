"""The usage of one engine replica: the tokens of its calls, and what each second of its GPUs was spent on.

Each moment belongs to one state: `starting` until the engine is ready, `used` while the engine has unfinished
sequences, else `idle`, or `draining` once the replica drains. So the states add up to the replica's life.

Used time is divided among the sequences. Each token that a step computes, of a prompt or of an answer, pays
the same share of the step. The reason is that the linear layers cost the same for each token. So no fitted
model is needed, and all replicas charge alike from the first step. The rule neglects reads of the KV cache.
By the profile of an H100, a prompt of 2,048 tokens beside 64 sequences pays 97 % of a step. By the step-time
model it would pay 85 to 93 %.

A step costs the event loop a few additions, whatever the batch. vLLM's front end knows how many tokens a step
computed, but not whose. So a thread divides the steps of the last second, by three rules:

- A sequence that decodes has one token in each step since the last division.
- A prompt pays for its tokens without the cached ones, at the mean price of a prompt token. Prompts that are
  not finished pay for the rest of the computed prompt tokens, in the order of their lanes, then of arrival.
  Prompts of ended calls come last. vLLM's front end learns only with the first token that a prompt has left
  the engine's queue.
- The shares are scaled so that their sum is the used time.

Tokens count when their events have been sent, so a request that moves to another engine counts once. GPU time
counts where it was spent.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from serve_app.ledger.usage import Account, Amounts, State
from serve_app.settings.caller import LANES, Caller
from serve_app.settings.storage import TokenPrices


class Delivered(Protocol):
    """Counts the tokens of a stream whose events have been sent."""

    tokens: int


class Served(Protocol):
    """A call as the engine serves it."""

    sequences: list[Any]
    """vLLM's states of its sequences so far."""
    status: int | None
    """The status of the answer, once its first bytes are there."""

    @property
    def delivered(self) -> Delivered | None:
        """The delivered tokens of a stream; None if no other engine could continue it."""


@dataclass(slots=True)
class _Mark:
    """What has been divided of one sequence. `price` and `steps` are the meter's sums at that time."""

    price: float
    steps: int
    decoded: int = 0
    prefilled: int = 0
    counted: bool = False
    """Whether the prompt's tokens are counted."""


@dataclass(slots=True, eq=False)
class Call:
    """One call of the engine, from `UsageMeter.begin` to `UsageMeter.end`."""

    account: Account
    served: Served
    moved: bool
    """Whether another engine began the answer, and has counted the request and its prompt."""
    price: float
    steps: int
    marks: list[_Mark] = field(default_factory=list)
    answered: bool = False
    completion_tokens: int = 0
    ended: tuple[float, int] | None = None
    """The meter's price and steps when the call ended."""


class UsageMeter:
    """Counts the usage of one replica. Any thread may call its methods.

    Args:
        gpus: The devices of the replica; 1 on the CPU.
        gpu_hour_price: Money for one device and hour.
        began_s: How long ago the replica got its devices.
        clock: Seconds that never go back.
        token_prices: What requests pay in place of GPU time, if the model is billed by tokens.
    """

    def __init__(
        self,
        model: str,
        gpus: int,
        gpu_hour_price: float,
        began_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        token_prices: TokenPrices | None = None,
    ) -> None:
        self._model = model
        self._gpus = gpus
        self._price_per_s = gpu_hour_price / 3600
        self._clock = clock
        self._token_prices = token_prices
        self._lock = threading.Lock()
        self._at = clock() - began_s
        self._state: State = "starting"
        """The state of the moments without sequences."""
        self._requests: Mapping[str, Any] = {}
        self._had_requests = False
        self._seconds: dict[State, float] = {}
        self._open: dict[Call, None] = {}
        self._ended: list[Call] = []
        self._step_s = 0.0
        """Used time since the last step ended."""
        self._price = 0.0
        """Sum over all steps of the seconds for one token."""
        self._steps = 0
        self._prefill_s = 0.0
        self._prefill_tokens = 0

    def serve(self, requests: Mapping[str, Any]) -> None:
        """End the start-up. `requests` are vLLM's states by id; the very mapping that vLLM keeps."""
        with self._lock:
            self._pass()
            self._requests = requests
            self._state = "idle"

    def drain(self) -> None:
        with self._lock:
            self._pass()
            self._state = "draining"

    def begin(self, caller: Caller, served: Served, moved: bool = False) -> Call:
        """Begin a call, whose sequences are yet to come."""
        with self._lock:
            self._pass()
            account = Account(self._model, caller.key, caller.lane, budgets=caller.budgets)
            call = Call(account, served, moved, self._price, self._steps)
            self._open[call] = None
            return call

    def end(self, call: Call) -> None:
        """End a call. Its sequences are finished or aborted."""
        with self._lock:
            self._pass()
            call.ended = self._price, self._steps
            del self._open[call]
            self._ended.append(call)

    def step(self, prompt_tokens: int, sequences: int, tokens: int, results: bool) -> None:
        """Add an engine step that has just ended.

        Args:
            prompt_tokens: The prompt tokens that it computed.
            sequences: The sequences that decoded.
            tokens: Their tokens in the step. More than one for each are guesses, or tokens of a moved stream.
            results: Whether the step had a result for any request.
        """
        with self._lock:
            self._pass(results)
            computed = prompt_tokens + tokens
            if not computed or not (results or self._requests):
                return  # vLLM begins one more step before it sees that the last request has ended
            price, self._step_s = self._step_s / computed, 0.0
            self._price += price
            self._steps += 1
            prefilled = computed - sequences
            self._prefill_s += price * prefilled
            self._prefill_tokens += prefilled

    def take(self) -> dict[Account, Amounts]:
        """Return the usage since the last call."""
        with self._lock:
            self._pass()
            calls = [*self._ended, *self._open]
            amounts: defaultdict[Account, Amounts] = defaultdict(Amounts)
            for call, share in zip(calls, self._shares(calls), strict=True):
                mine = amounts[call.account]
                mine.gpu_seconds += share
                _count_tokens(call, mine)
            seconds, self._seconds = self._seconds, {}
            self._ended = []
            self._prefill_s, self._prefill_tokens = 0.0, 0
        seconds.pop("used", None)
        for state, spent in seconds.items():
            amounts[Account(self._model, state=state)] = Amounts(gpu_seconds=spent)
        for account, each in amounts.items():
            each.gpu_seconds *= self._gpus
            each.cost = each.gpu_seconds * self._price_per_s
            if self._token_prices is not None and account.state == "used":
                tokens = each.prompt_tokens, each.cached_tokens, each.completion_tokens
                each.cost = self._token_prices.cost(*tokens)
        return {account: each for account, each in amounts.items() if each}

    def _pass(self, results: bool = False) -> None:
        """Credit the time since the last event. `results`: a step has just ended some of its requests."""
        now = self._clock()
        spent, self._at = now - self._at, now
        has_requests = bool(self._requests)
        # A request comes after `begin`, which is an event too, so little of this time is before the request.
        used = self._had_requests or has_requests or results
        self._had_requests = has_requests
        state = "used" if used and self._state != "starting" else self._state
        self._seconds[state] = self._seconds.get(state, 0.0) + spent
        if state == "used":
            self._step_s += spent

    def _shares(self, calls: Sequence[Call]) -> list[float]:
        """Return the seconds that each call pays. Without a call, used time becomes idle time."""
        used = self._seconds.get("used", 0.0)
        price = self._prefill_s / self._prefill_tokens if self._prefill_tokens else 0.0
        left = self._prefill_tokens
        weights = [0.0] * len(calls)
        unfinished = []
        for index, call in enumerate(calls):
            for sequence, mark in _sequences(call):
                weights[index] += self._decoded(call, sequence, mark)
                if sequence.is_prefilling:
                    unfinished.append((index, sequence, mark))
                    continue
                new = max(0, (sequence.prompt_len or 0) - sequence.num_cached_tokens - mark.prefilled)
                mark.prefilled += new
                left -= new
                weights[index] += new * price
        # As the engine's queue serves them.
        unfinished.sort(
            key=lambda each: (calls[each[0]].ended is not None, LANES.index(calls[each[0]].account.lane))
        )
        for index, sequence, mark in unfinished:
            new = max(0, min(left, (sequence.prompt_len or 0) - mark.prefilled))
            mark.prefilled += new
            left -= new
            weights[index] += new * price
        if not any(weights):  # no step has ended
            weights = [float(not all(each.is_prefilling for each in call.served.sequences)) for call in calls]
            for index, _, _ in unfinished[:1]:  # the prompt that the engine computes, if it computes one
                if calls[index].ended is None or not any(weights):
                    weights[index] = 1.0
        total = sum(weights)
        if not total:
            self._seconds[self._state] = self._seconds.get(self._state, 0.0) + used
            return weights
        return [used * weight / total for weight in weights]

    def _decoded(self, call: Call, sequence: Any, mark: _Mark) -> float:
        """Return the seconds of the steps in which a sequence decoded, since its mark."""
        price, steps = call.ended or (self._price, self._steps)
        # The step that ends the prefill makes the first token.
        decoded: int = max(0, sequence.stats.num_generation_tokens - 1)
        part = min(1.0, (decoded - mark.decoded) / max(1, steps - mark.steps))
        share = part * (price - mark.price)
        mark.price, mark.steps, mark.decoded = price, steps, decoded
        return share


def _sequences(call: Call) -> Iterator[tuple[Any, _Mark]]:
    """Yield a call's sequences with their marks. A new sequence counts from the call's begin."""
    sequences = call.served.sequences
    while len(call.marks) < len(sequences):
        call.marks.append(_Mark(call.price, call.steps))
    return zip(sequences, call.marks, strict=False)


def _count_tokens(call: Call, amounts: Amounts) -> None:
    """Count what a call has delivered since the last time."""
    if call.served.status != 200 or not call.served.sequences:  # such as `/tokenize`
        return
    if not call.answered:
        call.answered = True
        amounts.requests += not call.moved
    if not call.moved:
        for sequence, mark in zip(call.served.sequences, call.marks, strict=False):
            if mark.counted or (sequence.is_prefilling and call.ended is None):
                continue
            mark.counted = True
            if sequence.request_index == 0:  # the other sequences of `n` have the same prompt
                amounts.prompt_tokens += sequence.prompt_len or 0
                amounts.cached_tokens += sequence.num_cached_tokens
    delivered = call.served.delivered
    if delivered is None:  # an answer that is not a stream, or a stream that cannot move
        tokens = sum(sequence.stats.num_generation_tokens for sequence in call.served.sequences)
    else:
        tokens = delivered.tokens
    amounts.completion_tokens += tokens - call.completion_tokens
    call.completion_tokens = tokens
