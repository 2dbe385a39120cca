"""The requests that a shared fleet can serve in time if the future is known: a bound, and a schedule.

Time is cut into slots of half a start. A place that serves one model in a slot can serve another one two
slots later at the earliest, because a start is between. So the best use of all places is a flow of maximum
reward: each place is a unit of flow through models and slots, rewarded for the requests that it adds.
"""

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from math import inf

import numpy as np
import numpy.typing as npt

from replay.fleet.fleet import Fleet
from replay.profile import Profile
from traces.trace import Trace

_SLOTS = 2
"""Slots of a start."""
_HALVINGS = 9
"""The shortest windows are slots cut in half so many times."""

Added = npt.NDArray[np.int64]
"""By slot, the requests that the first, the second, ... replica adds."""


def most_in_time(
    traces: Mapping[str, Trace], places: int, profile: Profile, target_s: float, most_replicas: int
) -> int:
    """Return a bound on the requests with a first token within `target_s`, on a fleet that is empty at first.

    Every policy, every router and every order of the requests is within it. No policy need reach it.
    """
    slot_s = profile.cold_start_s[0] / _SLOTS
    added = [
        _added(*_requests(trace, profile, target_s), target_s, slot_s, most_replicas)
        for trace in traces.values()
    ]
    _, total = _best_use(added, places, _SLOTS)
    return round(total)


class Hindsight:
    """Knows all requests, and moves replicas as the flow says: for what they serve in the order of arrival.

    It starts no model before its first request, as policies that see only the past.
    """

    name = "hindsight"

    def __init__(
        self,
        traces: Mapping[str, Trace],
        places: int,
        profile: Profile,
        target_s: float,
        most_replicas: int,
    ) -> None:
        self._slot_s = sum(profile.cold_start_s) / 2 / _SLOTS
        added = []
        for trace in traces.values():
            arrival_s, prefill_s = _requests(trace, profile, target_s)
            known = arrival_s >= min(arrival_s, default=0.0) + self._slot_s * _SLOTS
            requests = arrival_s[known], prefill_s[known]
            added.append(_added_in_order(*requests, target_s, self._slot_s, most_replicas))
        # A slot more, because a place moves at the end of a slot and serves from the beginning of one.
        flow, _ = _best_use(added, places, _SLOTS + 1)
        self._targets: list[dict[str, int]] = []
        for slot in range(max(map(len, added)) + 1):
            self._targets.append({})
            for number, model in enumerate(traces):
                serving = flow.sent(("begin", number, slot), ("end", number, slot))
                begun = [("begin", number, slot + later) for later in range(1, _SLOTS + 1)]
                starting = sum(flow.sent(("free", node[2]), node) for node in begun)
                self._targets[-1][model] = serving + starting

    def step(self, fleets: Mapping[str, Fleet], places: int) -> None:
        """Set the targets of the slot. After the last arrival a model keeps a replica while requests wait."""
        slot = int(next(iter(fleets.values())).now / self._slot_s)
        targets = self._targets[slot] if slot < len(self._targets) else {}
        free = places - sum(targets.values())
        for model, fleet in fleets.items():
            waits = int(bool(fleet.open_requests) and not targets.get(model) and free > 0)
            free -= waits
            fleet.set_target(targets.get(model, 0) + waits)


def _best_use(added: Sequence[Added], places: int, gap: int) -> tuple["_Flow", float]:
    """Return the flow of all places, and its reward. A place changes its model within `gap` slots."""
    slots = max(map(len, added))
    flow = _Flow()
    for slot in range(_SLOTS, slots):  # the first starts end in slot `_SLOTS`
        flow.edge(("free", slot), ("free", slot + 1), inf, 0.0)
        for model, rewards in enumerate(added):
            if slot < len(rewards):
                begin, end = ("begin", model, slot), ("end", model, slot)
                flow.edge(("free", slot), begin, inf, 0.0)
                for reward in rewards[slot]:
                    flow.edge(begin, end, 1.0, float(reward))
                flow.edge(end, ("begin", model, slot + 1), inf, 0.0)
                flow.edge(end, ("free", min(slot + gap, slots)), inf, 0.0)
    return flow, sum(flow.add_best(("free", _SLOTS), ("free", slots)) for _ in range(places))


def _requests(
    trace: Trace, profile: Profile, target_s: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the arrivals and the seconds of prefill, without requests that would always be late."""
    chunks = list(trace.chunks())
    arrival_s = np.concatenate([chunk.arrival_s for chunk in chunks])
    prefill_s = profile.step.per_prefill_token_s * np.concatenate([chunk.input_tokens for chunk in chunks])
    possible = profile.step.base_s + prefill_s <= target_s
    return arrival_s[possible], prefill_s[possible]


def _added_in_order(
    arrival_s: npt.NDArray[np.float64],
    prefill_s: npt.NDArray[np.float64],
    target_s: float,
    slot_s: float,
    most_replicas: int,
) -> Added:
    """Return what replicas add that prefill in the order of arrival, without work of earlier slots."""
    slots = int(arrival_s[-1] / slot_s) + 1 if len(arrival_s) else 0
    served = np.zeros((slots, most_replicas), dtype=np.int64)
    for replicas in range(1, most_replicas + 1):
        ends, current = [0.0] * replicas, -1
        for at, seconds in zip(arrival_s.tolist(), prefill_s.tolist(), strict=True):
            slot = int(at / slot_s)
            if slot != current:
                ends, current = [0.0] * replicas, slot
            end = max(ends[0], at) + seconds
            heapq.heapreplace(ends, end)
            served[slot, replicas - 1] += end <= at + target_s
    return np.diff(served, axis=1, prepend=0)


def _added(
    arrival_s: npt.NDArray[np.float64],
    prefill_s: npt.NDArray[np.float64],
    target_s: float,
    slot_s: float,
    most_replicas: int,
) -> Added:
    """Return what replicas add at most, in any order.

    If requests of a window are in time, all of their prefill ends by `target_s` after the window.
    """
    slots = int(arrival_s[-1] / slot_s) + 1 if len(arrival_s) else 0
    served = np.full((slots << _HALVINGS, most_replicas), len(arrival_s))
    for halvings in range(_HALVINGS, -1, -1):
        windows, window_s = slots << halvings, slot_s / (1 << halvings)
        window = np.minimum((arrival_s / window_s).astype(np.int64), windows - 1)
        order = np.lexsort((prefill_s, window))
        work = np.cumsum(prefill_s[order])
        bounds = np.searchsorted(window[order], np.arange(windows + 1))
        begins, ends = bounds[:-1], bounds[1:]
        done = np.concatenate([[0.0], work])[begins]
        for replicas in range(1, most_replicas + 1):
            shortest = np.searchsorted(work, done + replicas * (window_s + target_s), "right")
            most = np.minimum(shortest, ends) - begins
            served[:, replicas - 1] = np.minimum(served[:, replicas - 1], most)
        served = np.minimum(served, served[:, :1] * np.arange(1, most_replicas + 1))
        if halvings:
            served = served.reshape(windows // 2, 2, most_replicas).sum(axis=1)
    return np.diff(served, axis=1, prepend=0)


_Node = tuple[str, int] | tuple[str, int, int]


class _Flow:
    """Paths of the greatest reward, one after the other, through what the paths before have left."""

    def __init__(self) -> None:
        self._to: list[int] = []
        self._left: list[float] = []
        self._reward: list[float] = []
        self._from: list[list[int]] = []
        self._numbers: dict[_Node, int] = {}

    def _number(self, node: _Node) -> int:
        if node not in self._numbers:
            self._numbers[node] = len(self._from)
            self._from.append([])
        return self._numbers[node]

    def edge(self, begin: _Node, end: _Node, capacity: float, reward: float) -> None:
        """Add an edge, and the edge with the same number but for its last bit that takes its flow back."""
        a, b = self._number(begin), self._number(end)
        for source, target, left, worth in ((a, b, capacity, reward), (b, a, 0.0, -reward)):
            self._from[source].append(len(self._to))
            self._to.append(target)
            self._left.append(left)
            self._reward.append(worth)

    def sent(self, begin: _Node, end: _Node) -> int:
        """Return the units on all edges from `begin` to `end`."""
        if begin not in self._numbers or end not in self._numbers:
            return 0
        target = self._numbers[end]
        edges = [edge for edge in self._from[self._numbers[begin]] if not edge % 2]
        return round(sum(self._left[edge ^ 1] for edge in edges if self._to[edge] == target))

    def add_best(self, source: _Node, sink: _Node) -> float:
        """Send one unit more on the path of the greatest reward, and return the reward."""
        begin, end = self._number(source), self._number(sink)
        best, by = [-inf] * len(self._from), [-1] * len(self._from)
        best[begin] = 0.0
        queue, queued = deque([begin]), {begin}
        while queue:
            node = queue.popleft()
            queued.discard(node)
            for edge in self._from[node]:
                target, reward = self._to[edge], best[node] + self._reward[edge]
                if self._left[edge] > 0 and reward > best[target] + 1e-9:
                    best[target], by[target] = reward, edge
                    if target not in queued:
                        queued.add(target)
                        queue.append(target)
        if best[end] == -inf:
            return 0.0
        node = end
        while node != begin:
            edge = by[node]
            self._left[edge] -= 1
            self._left[edge ^ 1] += 1
            node = self._to[edge ^ 1]
        return best[end]
