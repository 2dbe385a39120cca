"""A bound on the requests that any policy can serve in time on a shared fleet, however well it knows the future.

Time is cut into slots of half a start. A place that serves one model in a slot can serve another one two slots
later at the earliest, because a start is between. The best use of all places is then a flow of maximum reward:
each place is a unit of flow through models and slots, and is rewarded for the requests it adds in each slot.
"""

from collections import deque
from collections.abc import Mapping
from math import inf

import numpy as np
import numpy.typing as npt

from replay.profile import Profile
from traces.trace import Trace

_SLOTS = 2
"""Slots of a start."""
_HALVINGS = 9
"""The shortest windows are slots cut in half so many times."""


def most_in_time(
    traces: Mapping[str, Trace], places: int, profile: Profile, target_s: float, most_replicas: int
) -> int:
    """Return a bound on the requests with a first token within `target_s`, on a fleet that is empty at first.

    Every policy and every order of the requests is within it. A policy that reaches it need not exist.
    """
    slot_s = profile.cold_start_s[0] / _SLOTS
    rewards = []
    for trace in traces.values():
        chunks = list(trace.chunks())
        arrival_s = np.concatenate([chunk.arrival_s for chunk in chunks])
        tokens = np.concatenate([chunk.input_tokens for chunk in chunks])
        rewards.append(_added(arrival_s, tokens, profile, target_s, slot_s, most_replicas))
    slots = max(map(len, rewards))
    flow = _Flow()
    for slot in range(_SLOTS, slots):  # the first starts end in slot `_SLOTS`
        flow.edge(("free", slot), ("free", slot + 1), inf, 0.0)
        for model, added in enumerate(rewards):
            if slot >= len(added):
                continue
            flow.edge(("free", slot), ("begin", model, slot), inf, 0.0)
            for reward in added[slot]:
                flow.edge(("begin", model, slot), ("end", model, slot), 1.0, float(reward))
            flow.edge(("begin", model, slot), ("end", model, slot), inf, 0.0)
            flow.edge(("end", model, slot), ("begin", model, slot + 1), inf, 0.0)
            flow.edge(("end", model, slot), ("free", min(slot + _SLOTS, slots)), inf, 0.0)
    return round(sum(flow.add_best(("free", _SLOTS), ("free", slots)) for _ in range(places)))


def _added(
    arrival_s: npt.NDArray[np.float64],
    tokens: npt.NDArray[np.int64],
    profile: Profile,
    target_s: float,
    slot_s: float,
    most_replicas: int,
) -> npt.NDArray[np.int64]:
    """Return by slot the requests that the first, the second, ... replica adds at most.

    If requests of a window are in time, all of their prefill ends by `target_s` after the window.
    """
    prefill_s = profile.step.per_prefill_token_s * tokens
    possible = profile.step.base_s + prefill_s <= target_s
    arrival_s, prefill_s = arrival_s[possible], prefill_s[possible]
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
        if halvings:
            served = served.reshape(windows // 2, 2, most_replicas).sum(axis=1)
    return np.diff(served, axis=1, prepend=0)


class _Flow:
    """Paths of the greatest reward, one after the other, through what the paths before have left."""

    def __init__(self) -> None:
        self._to: list[int] = []
        self._left: list[float] = []
        self._reward: list[float] = []
        self._from: list[list[int]] = []
        self._numbers: dict[tuple[str | int, ...], int] = {}

    def _number(self, node: tuple[str | int, ...]) -> int:
        if node not in self._numbers:
            self._numbers[node] = len(self._from)
            self._from.append([])
        return self._numbers[node]

    def edge(
        self, begin: tuple[str | int, ...], end: tuple[str | int, ...], capacity: float, reward: float
    ) -> None:
        """Add an edge, and the edge with the same number but for its last bit that takes its flow back."""
        a, b = self._number(begin), self._number(end)
        for source, target, left, worth in ((a, b, capacity, reward), (b, a, 0.0, -reward)):
            self._from[source].append(len(self._to))
            self._to.append(target)
            self._left.append(left)
            self._reward.append(worth)

    def add_best(self, source: tuple[str | int, ...], sink: tuple[str | int, ...]) -> float:
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
