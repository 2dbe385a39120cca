"""One engine replica again, token by token and as plainly as it can be said; slow, for comparison only."""

from collections import deque
from dataclasses import dataclass, field

from replay.profile import Profile


@dataclass(slots=True, eq=False)
class Sequence:
    arrived: float
    prompt: int
    output: int
    computed: int = 0
    tokens: int = 0
    """Of the answer."""
    last_at: float = 0.0
    scheduled: int = 0
    decodes: bool = False
    """Nothing but its last token is left to compute, since it has got that."""

    @property
    def left(self) -> int:
        """Tokens that have to be computed before the next one comes."""
        return self.prompt + self.tokens - self.computed


@dataclass(slots=True)
class PlainEngine:
    profile: Profile
    queue: deque[Sequence] = field(default_factory=deque)
    batch: list[Sequence] = field(default_factory=list)
    now: float = 0.0
    ttfts: list[float] = field(default_factory=list)
    itls: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    preemptions: int = 0

    @property
    def kv_used(self) -> int:
        return sum(sequence.computed + sequence.scheduled for sequence in self.batch)

    def run(self, requests: list[tuple[float, int, int]]) -> None:
        """All of them, to the last token."""
        coming = deque(requests)
        while coming or self.queue or self.batch:
            if not (self.queue or self.batch) and coming[0][0] > self.now:
                # Who finds the engine idle begins a step at once, alone.
                self.now = coming[0][0]
                self.queue.append(Sequence(*coming.popleft()))
            while coming and coming[0][0] < self.now:
                self.queue.append(Sequence(*coming.popleft()))
            self._step()

    def _step(self) -> None:
        profile = self.profile
        decodes = context = prefill = 0
        budget = profile.max_num_batched_tokens
        preempted = False
        scheduled = []
        for sequence in list(self.batch):
            if sequence not in self.batch:
                continue  # preempted by one before it
            decoding = sequence.decodes
            want = 1 if decoding else min(sequence.left, budget)
            while self.kv_used + want > profile.kv_cache_tokens and sequence in self.batch:
                self._preempt()
                preempted = True
            if sequence not in self.batch:
                break
            sequence.scheduled = want
            scheduled.append(sequence)
            budget -= want
            if decoding:
                decodes += 1
                context += sequence.computed
            else:
                prefill += want
        while self.queue and not preempted and len(self.batch) < profile.max_num_seqs and budget > 0:
            if self.kv_used + self.queue[0].left > profile.kv_cache_tokens:
                break
            sequence = self.queue.popleft()
            sequence.scheduled = min(sequence.left, budget)
            budget -= sequence.scheduled
            prefill += sequence.scheduled
            self.batch.append(sequence)
            scheduled.append(sequence)
        step = profile.step
        self.now += step.decode_s(decodes, context) + step.per_prefill_token_s * prefill
        for sequence in scheduled:
            sequence.computed += sequence.scheduled
            sequence.scheduled = 0
            if sequence.left:
                continue
            if sequence.tokens:
                self.itls.append(self.now - sequence.last_at)
            else:
                self.ttfts.append(self.now - sequence.arrived)
            sequence.tokens += 1
            sequence.decodes = True
            sequence.last_at = self.now
            if sequence.tokens == sequence.output:
                self.batch.remove(sequence)
                self.ends.append(self.now - sequence.arrived)

    def _preempt(self) -> None:
        victim = self.batch.pop()
        victim.computed = 0
        victim.decodes = False
        self.queue.appendleft(victim)
        self.preemptions += 1
