"""Pick the running replica that gets a request.

A step that prefills delays every sequence of its batch once, whether it prefills one prompt or several. So
streams are sent in prefill groups: prompts that one engine step prefills together.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from serve_app.ingress.prefix_index import FADE, Ratio
from serve_app.ingress.replica import SEQUENCE_TOKENS, Replica

GROUP_REQUESTS = 4
"""The most requests of one prefill group. Groups of four delay a quarter as many steps. Each further request
saves little and lengthens the step."""
PREFILL_BUDGET_SHARE = 0.8
"""The share of the TTFT target that a request may wait for prefill, its own included. The last fifth is a
margin: the estimate of tokens from bytes is off by some 20 %, and the engine's current step has to end."""
ASSUMED_TOKENS_PER_S = 20_000.0
"""The speed of prefill until streams have shown it: 50 us per token, as in `SEQUENCE_TOKENS`."""


@dataclass(slots=True)
class ReplicaChoice:
    """The choice among the replicas of one deployment, with means over about a hundred prompts."""

    pace: Ratio = field(default_factory=Ratio)
    """Prompt tokens prefilled, and the seconds from sending a request to its first token."""
    prompts: Ratio = field(default_factory=Ratio)
    """Prompt tokens, and prompts."""
    sharing: float = 0.0
    """The share of prompts that had a cached prefix at some replica."""
    step_tokens: float = math.inf
    """The most tokens of an engine's step; infinite until an engine has reported it."""
    variants: dict[str, "ReplicaChoice"] = field(default_factory=dict)
    """The choices among the replicas of each variant, whose speeds differ. Empty without variants."""

    def of(self, variant: str) -> "ReplicaChoice":
        """Return the choice among the replicas of one variant; this one for ""."""
        return self.variants.setdefault(variant, ReplicaChoice()) if variant else self

    def choose(
        self,
        replicas: Collection[Replica],
        limit: int,
        batch: int,
        prompt_tokens: int,
        cached: Mapping[str, int],
        prefill_budget_s: float,
        now: float,
    ) -> Replica | None:
        """Return the replica for a request; None if all have `limit` requests in flight.

        A stream goes where its prefill delays requests least (`least_delay`). There its first token must be
        expected within `prefill_budget_s`, and within the time that a full group and one more request of mean
        length take. A longer wait would save almost no late token of other streams. All other requests go to
        the least loaded replica, and so do streams before the pace of prefill is known.

        Of the replicas that each variant would choose, the one gets it where the load is done first. The load
        is that of `least_loaded`, with the request's own prompt. It is done at the variant's pace.

        Args:
            replicas: The replicas that can be picked, the least recently used first.
            limit: The most requests of this process on a replica.
            batch: The most requests that an engine runs at once. Further ones wait for more than prefill.
            cached: The prompt tokens in the replicas' caches, by replica id.
            prefill_budget_s: How long a stream may wait for prefill, its own included; 0 for other requests.
            now: Seconds on the clock of `Replica.group_since`.
        """
        if self.variants:
            by_variant: dict[str, list[Replica]] = {}
            for replica in replicas:
                by_variant.setdefault(replica.variant, []).append(replica)
            usual, best, least = self.prefill_speed(), None, (math.inf, math.inf)
            for variant, own in by_variant.items():
                choice = self.of(variant)
                choice.sharing = self.sharing
                found = choice.choose(own, limit, batch, prompt_tokens, cached, prefill_budget_s, now)
                if found is None:
                    continue
                tokens = found.load + prompt_tokens - cached.get(found.replica_id, 0)
                rank = (found.failures, tokens / choice.pace.value(usual))
                if rank < least:
                    best, least = found, rank
            return best
        pace, chosen = self.pace, None
        if prefill_budget_s > 0.0 and pace.other > 0.0:
            mean = self.prompts.amount / self.prompts.other
            chosen = least_delay(
                replicas,
                min(limit, batch),
                prompt_tokens,
                cached,
                max(self.sharing, min(2.0 * mean / self.step_tokens - 1.0, 1.0)),
                min(prefill_budget_s * pace.amount / pace.other, (GROUP_REQUESTS + 1) * mean),
                self.step_tokens,
                now - prefill_budget_s,
            )
        return chosen or least_loaded(replicas, limit, cached)

    def prefill_speed(self) -> float:
        """Return the prompt tokens that a replica prefills per second; with variants, the mean of them."""
        if known := [choice.pace.value(0.0) for choice in self.variants.values() if choice.pace.other]:
            return sum(known) / len(known)
        return self.pace.value(ASSUMED_TOKENS_PER_S)

    def learn_sharing(self, shared: bool) -> None:
        """Count a prompt that had a cached prefix at some replica, or had none."""
        self.sharing = self.sharing * FADE + (1.0 - FADE) * shared

    def learn_pace(self, seconds: float, tokens: float, prompt_tokens: int) -> None:
        """Count a first token that came after `seconds`, while the engine had `tokens` to prefill.

        `tokens` is an estimate: cached tokens, and tokens estimated from an image's bytes, take no time. So
        one first token counts at most as twice the known pace.
        """
        pace = self.pace
        if pace.other > 0.0:
            tokens = min(tokens, 2.0 * seconds * pace.amount / pace.other)
        pace.learn(tokens, seconds)
        self.prompts.learn(prompt_tokens, 1.0)


def least_delay(
    replicas: Iterable[Replica],
    room: int,
    prompt_tokens: int,
    cached: Mapping[str, int],
    waiting: float,
    most_tokens: float,
    step_tokens: float,
    oldest: float,
) -> Replica | None:
    """Return the replica where a prompt delays requests least; None if all would miss its TTFT target.

    The delay is counted in prompt tokens: the prompt's own, once for the prompt itself and once for each
    delayed stream. A prompt that joins a group delays no stream. A prompt that begins a group delays every
    request in flight. In two cases a prompt counts as delaying half as many requests: while a group is being
    prefilled, because other prompts will join the next group, and if only part of the prompt fits the group's
    step. The prompt tokens ahead count with the weight `waiting`. Waiting costs nothing while short new
    prompts share steps. Loads of adapters share no step, so their tokens always count.

    Args:
        room: Only replicas with fewer requests in flight are considered.
        waiting: The weight of a prompt token ahead, 0 to 1.
        most_tokens: The most prompt tokens to prefill on a replica, the prompt's own included.
        step_tokens: The most tokens of an engine's step.
        oldest: If a group began before this time, its engine stands still.
    """
    chosen: Replica | None = None
    least_ahead = fewest = 0
    delay = least = 0.0
    waits = 2.0 * waiting  # delays are doubled, so that half a delayed stream is a whole number
    fewest_failures: float = math.inf
    own = prompt_tokens
    for replica in replicas:
        failures = replica.failures
        if failures > fewest_failures:
            continue
        if failures < fewest_failures:
            fewest_failures, chosen = failures, None
        in_flight = replica.in_flight
        if in_flight >= room:
            continue
        in_all = in_flight + replica.background_in_flight
        ahead = replica.load - SEQUENCE_TOKENS * in_flight
        if cached:
            own = prompt_tokens - cached.get(replica.replica_id, 0)
        if ahead + own > most_tokens:
            continue
        late = 2 * in_flight
        if replica.group_tokens:
            if replica.group_since < oldest:
                continue
            joining = replica.next_requests
            if not joining or replica.next_tokens + own > step_tokens:
                late = in_flight
            elif joining < GROUP_REQUESTS:
                late = 0
        delay = own * (2 + late)
        if waits:
            delay += waits * ahead
        if replica.load_tokens:
            delay += 2 * replica.load_tokens
        if chosen is not None:
            if delay > least:
                continue
            if delay == least and (ahead > least_ahead or (ahead == least_ahead and in_all >= fewest)):
                continue
        chosen, least, least_ahead, fewest = replica, delay, ahead, in_all
    return chosen


def least_loaded(
    replicas: Iterable[Replica], limit: int, cached: Mapping[str, int], *, background: bool = False
) -> Replica | None:
    """Return the least loaded replica with fewer than `limit` requests in flight; None if there is none.

    Cached prompt tokens need no prefill, so they are subtracted from the load. Requests of the lane
    `background` count only for a request of that lane, and between replicas of equal load.
    """
    chosen: Replica | None = None
    least = fewest = 0
    fewest_failures: float = math.inf
    for replica in replicas:
        failures = replica.failures
        if failures > fewest_failures:
            continue
        if failures < fewest_failures:
            fewest_failures, chosen = failures, None
        in_all = replica.in_flight + replica.background_in_flight
        if (in_all if background else replica.in_flight) >= limit:
            continue
        load = replica.load + replica.background_load if background else replica.load
        if cached:
            load -= cached.get(replica.replica_id, 0)
        if chosen is None or load < least or (load == least and in_all < fewest):
            chosen, least, fewest = replica, load, in_all
    return chosen
