"""What must hold in each step of an engine: the order of lanes, and no preemption in vain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from serve_app.engine.sequence_lanes import lane_of

_MOST_IDLE_STEPS = 64
"""The bound on steps leaves `background` out of half as many in a row."""


class LaneWatch:
    """Compares the steps of one scheduler with the rules of lanes.

    The rules count only sequences that can run: those whose adapter has a place in the step.

    - A sequence waits beside one of a worse lane only if the batch is full or the step has no more tokens.
    - `standard` stays within two places of its share of those that are given away while `interactive` waits.
    - A sequence is preempted only in a step that begins another one.
    - `background` is left out for long only while the step has a prompt of another lane, or no place.
    """

    def __init__(self, scheduler: Any, report: Callable[[str], None]) -> None:
        self._scheduler, self._report = scheduler, report
        self._owed = 0.0
        """The places that `standard` is behind its share."""
        self._idle = 0
        """Steps in a row that left out `background`."""

    def before(self) -> None:
        """Note the sequences before a step."""
        scheduler = self._scheduler
        self._waiting = {request.request_id: request for request in scheduler.waiting}
        self._running = {request.request_id: request for request in scheduler.running}
        self._preemptions = {name: request.num_preemptions for name, request in self._running.items()}
        self._prefills = any(r.is_prefill_chunk and _lane(r) < 2 for r in self._running.values())

    def check(self, tokens: dict[str, int]) -> None:
        """Check a step by its `tokens` for each sequence."""
        everyone = self._waiting | self._running
        begun = [self._waiting[name] for name in tokens if name in self._waiting]
        preempted = [
            name for name, count in self._preemptions.items() if everyone[name].num_preemptions > count
        ]
        prompts = self._prefills or any(_lane(each) < 2 for each in begun)
        if preempted and not prompts:
            self._report(f"{preempted} are preempted for nothing")
        worst = max((_lane(everyone[name]) for name in tokens), default=0)
        full = len(tokens) >= self._scheduler.max_num_active_reqs
        prompt = sum(each.num_tokens for each in self._waiting.values())  # some of it may be cached
        left = sum(tokens.values()) + prompt < self._scheduler.max_num_scheduled_tokens
        for each in self._able(everyone[name] for name in tokens) if left else ():
            if _lane(each) < 2 and each.request_id not in tokens and (worst == 2 or not full):
                self._report(f"{each.request_id} waits beside {sorted(tokens)}")
        ran = [everyone[name] for name in tokens if name not in self._waiting]
        for number, each in enumerate(begun):
            lanes = {_lane(one) for one in self._able([*ran, *begun[:number]]) if one not in begun[:number]}
            both = {0, 1} <= lanes
            self._owed += self._scheduler.waiting.standard_share - (_lane(each) == 1) if both else -self._owed
            if abs(self._owed) > 2.0:
                self._report(f"`standard` is {self._owed:.1f} places behind its share")
        able = chain(self._running.values(), self._able(everyone[name] for name in tokens))
        background = any(_lane(each) == 2 for each in able)
        self._idle = self._idle + 1 if background and worst < 2 and not (full or prompts) else 0
        if self._idle == _MOST_IDLE_STEPS:
            self._report(f"`background` is left out of {self._idle} steps beside {sorted(tokens)}")

    def _able(self, running: Any) -> Iterator[Any]:
        """Yield the waiting sequences that can run beside others."""
        adapters, lora = {_adapter(each) for each in running} - {0}, self._scheduler.lora_config
        room = lora is None or len(adapters) < lora.max_loras
        for each in self._waiting.values():
            if room or _adapter(each) in adapters | {0}:
                yield each


def _lane(request: Any) -> int:
    return ("interactive", "standard", "background").index(lane_of(request.priority))


def _adapter(request: Any) -> int:
    return request.lora_request.lora_int_id if request.lora_request else 0
