"""Which replica gets which request: as the ingress has it, in `serve_app.ingress`."""

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import pytest

from replay.fleet.fleet import Fleet
from serve_app.api.prompt_prefix import BLOCK_BYTES, PromptPrefix
from serve_app.ingress.replica import Replica, Reservation
from serve_app.ingress.replica_set import ReplicaSet
from serve_app.wire.signals import BYTES_PER_TOKEN
from tests.replay.fleet.build import chunk, fields, fleet, of, profile, serve, total

BLOCK_TOKENS = BLOCK_BYTES // BYTES_PER_TOKEN
"""So that a block of the ingress is one of the trace."""


@dataclass(slots=True)
class Ingress:
    """The ingress's own view of a fleet, told what happens in it step by step."""

    fleet: Fleet
    room: int
    limit: int
    prefill_budget_s: float
    batch: int
    now: float = 0.0
    replicas: ReplicaSet = field(init=False)
    held: deque[tuple[int, PromptPrefix | None, str]] = field(default_factory=deque)
    """Estimated prompt tokens of those who wait, their prefixes and their adapters."""
    refused: int = 0
    waiting: dict[int, deque[Reservation]] = field(default_factory=dict)
    """By slot, those without a token, in the order in which they were sent."""
    answered: dict[int, list[Reservation]] = field(default_factory=dict)
    finished: dict[int, float] = field(default_factory=dict)
    """Requests by slot."""

    def __post_init__(self) -> None:
        self.replicas = ReplicaSet(clock=lambda: self.now)
        self.replicas.choice.step_tokens = self.fleet.profile.max_num_batched_tokens

    def follow_replicas(self) -> None:
        """Who is ready has changed. Ray says so in any order; here by last use."""
        slots = self.fleet.ready_slots
        last_sent = self.fleet.memory.replicas["last_sent"]
        self.replicas.update(
            {
                f"{slot}": {"address": "", "token": "", "identity": ""}
                for slot in sorted(slots, key=lambda s: (last_sent[s], s))
            }
        )
        for slot in slots:
            self.replicas.prefixes.resize(f"{slot}", self.fleet.profile.kv_cache_tokens)
            self._replica(slot).adapter_load_s = self.fleet.profile.adapter_load_s
        for slot in slots:
            self.waiting.setdefault(slot, deque())
            self.answered.setdefault(slot, [])
            self.finished.setdefault(slot, 0.0)
        self._release()

    def arrive(self, prompt: int, at: float, prefix: PromptPrefix | None, adapter: str = "") -> None:
        self.now = at
        tokens = min(int(prompt * 4.4) // 4, 32_768)
        place = (
            self.replicas.take(self.limit, tokens, self.prefill_budget_s, self.batch, prefix, adapter=adapter)
            if not self.held
            else None
        )
        if place is not None:
            self._sent(place)
        elif len(self.replicas) and not self.held:
            self.refused += 1
        else:
            self.held.append((tokens, prefix, adapter))

    def follow_steps(self) -> None:
        """Steps have ended, and places that came free been given away."""
        self.now = self.fleet.now
        for slot, finished in self.finished.items():
            replica = self.fleet.memory.replicas[slot]
            ended = int(replica["finished"] - finished)
            sent = int(replica["in_flight"]) + ended - self._replica(slot).in_flight
            without_token = int(replica["waiting"] + replica["prefilling"]) - sent
            while len(self.waiting[slot]) > without_token:
                place = self.waiting[slot].popleft()
                self.replicas.note_first_byte(place)
                self.answered[slot].append(place)
            for _ in range(ended):
                self.replicas.release(self.answered[slot].pop())
            self.finished[slot] = float(replica["finished"])
            self._release()

    def agrees(self) -> bool:
        """Whether each replica has as many requests in flight, and as much to prefill, as here."""
        memory = self.fleet.memory
        here = {slot: (self._replica(slot).in_flight, self._replica(slot).load) for slot in self.finished}
        there = {
            slot: (memory.replicas["in_flight"][slot], _load(memory.replicas[slot])) for slot in self.finished
        }
        return here == there and len(self.held) == total(self.fleet, "held")

    def _replica(self, slot: int) -> Replica:
        return next(one for one in self.replicas.listed() if one.replica_id == f"{slot}")

    def _release(self) -> None:
        while self.held:
            tokens, prefix, adapter = self.held[0]
            place = self.replicas.take(
                self.room, tokens, self.prefill_budget_s, self.batch, prefix, adapter=adapter
            )
            if place is None:
                return
            self.held.popleft()
            self._sent(place)

    def _sent(self, place: Reservation) -> None:
        self.waiting[int(place.replica.replica_id)].append(place)


def _load(replica: np.void) -> int:
    return int(replica["pending_tokens"] + 64 * replica["in_flight"])


def next_step(made: Fleet) -> float:
    return float(made.memory.replicas["step_end"].min())


def shared_blocks(draw: np.random.Generator, prompt: int) -> list[int]:
    """The whole blocks of a prompt that is the next turn of one of a few conversations, or of a new one."""
    conversation = int(draw.integers(1, 30)) * 1000
    return [conversation + number for number in range(prompt // BLOCK_TOKENS)]


@pytest.mark.parametrize("routing", ["prefix-aware", "grouped", "tokens"])
@pytest.mark.parametrize(
    ("calm", "step_tokens"),
    [
        pytest.param(1, 3000, id="overload, nearly all by load"),
        pytest.param(5, 3000, id="by delay, several prompts a step"),
        pytest.param(5, 1000, id="by delay, a prompt a step"),
    ],
)
@pytest.mark.parametrize("seed", range(4))
def test_picks_are_those_of_the_ingress(seed: int, calm: int, step_tokens: int, routing: str) -> None:
    """The same arrivals, first tokens and ends, through both; replicas come one after the other."""
    draw = np.random.default_rng(seed)
    made = fleet(
        0 if seed % 2 else 2,
        of=profile(
            max_num_seqs=8,
            max_num_batched_tokens=step_tokens,
            max_cached_adapters=1000,  # the ingress sees only in a heartbeat that one is unloaded
            adapter_load_s=0.05,
        ),
        block_tokens=BLOCK_TOKENS,
        ttft_target_s=0.2 if calm == 1 else 2.0,
        max_ongoing_requests=14,
        routing=routing,
    )
    prefill_budget_s = float(made.memory.rules["prefill_budget_s"][0])
    assert (prefill_budget_s > 0) == (routing != "tokens")
    ingress = Ingress(made, room=9, limit=14, prefill_budget_s=prefill_budget_s, batch=8)
    ingress.follow_replicas()
    at, joined, held = 0.0, made.ready, 0
    for _ in range(400):
        at += calm * float(draw.exponential(draw.choice([0.002, 0.02, 0.1])))
        while next_step(made) < at:
            made.advance(next_step(made))
            ingress.follow_steps()
            assert ingress.agrees()
        if joined < 5 and at > 1.5 * joined + 1:
            made.advance(at)
            ingress.follow_steps()
            made.set_target(joined + 1)
            made.starting[joined].cold_start_s = 0.0
            made.settle()
            joined += 1
            ingress.follow_replicas()
        prompt = int(draw.integers(1, 2500))
        blocks = shared_blocks(draw, prompt)
        known = PromptPrefix(prompt * BYTES_PER_TOKEN, tuple(blocks), 0)
        adapter = int(draw.geometric(0.2)) if draw.random() < 0.5 else 0
        asked = chunk((at, prompt, int(draw.integers(1, 30))), blocks=[blocks], adapters=[adapter])
        made.take(asked, 0, at + 1e-9)
        ingress.arrive(
            prompt, at, known if routing == "prefix-aware" else None, f"{adapter}" if adapter else ""
        )
        assert ingress.agrees()
        held = max(held, len(ingress.held))

    assert total(made, "rejected") == ingress.refused
    assert 0 < total(made, "adapter_hits") < total(made, "adapter_requests")
    assert joined == 5
    assert min(of(made, "finished", slot) for slot in range(5)) > 10
    assert calm > 1 or (held > 5) == (seed % 2 == 1)


def test_two_choices_picks_the_fewer_in_flight_of_two() -> None:
    made = fleet(4, routing="two-choices", of=profile(max_num_seqs=64))
    serve(made, *[(0.001 * number, 10, 1000) for number in range(64)], until=0.1)
    spread = fields(made, "in_flight")

    # At random alone the fullest of four would have 16 + 5 or so; the emptiest is in one of two draws.
    assert sum(spread) == 64
    assert max(spread) - min(spread) <= 4
    # Of two there is nothing to draw.
    both = fleet(2, routing="two-choices", of=profile(max_num_seqs=64))
    serve(both, *[(0.001 * number, 10, 1000) for number in range(64)], until=0.1)
    assert fields(both, "in_flight") == [32, 32]
