"""A replica whose engine takes the steps that a test names, on a clock that the test sets."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from serve_app.ledger.meter import Call, UsageMeter
from serve_app.ledger.usage import Account, Amounts
from serve_app.settings.caller import Caller, Lane
from serve_app.settings.storage import TokenPrices


@dataclass
class FakeCall:
    """A call with its sequences, as the engine's record and stream have them."""

    sequences: list[Any] = field(default_factory=list)
    status: int | None = None
    delivered: Any = None
    usage: Call | None = None


class FakeReplica:
    """A meter, and an engine that schedules what the test says."""

    def __init__(
        self, gpus: int = 1, price: float = 0.0, began_s: float = 0.0, token_prices: TokenPrices | None = None
    ) -> None:
        self.now = 1000.0
        self.requests: dict[int, Any] = {}
        self.meter = UsageMeter("tide", gpus, price, began_s, lambda: self.now, token_prices)
        self.amounts: dict[Account, Amounts] = {}

    def serve(self) -> None:
        self.meter.serve(self.requests)

    def begin(
        self,
        key: str = "alice",
        prompt: int = 100,
        *,
        lane: Lane = "standard",
        n: int = 1,
        moved: bool = False,
        streamed: bool = False,
        caller: Caller | None = None,
    ) -> FakeCall:
        """A request arrives with `n` sequences."""
        call = FakeCall(delivered=SimpleNamespace(tokens=0) if streamed else None)
        call.usage = self.meter.begin(caller or Caller(key, lane), call, moved)
        for index in range(n):
            sequence = SimpleNamespace(
                prompt_len=prompt,
                num_cached_tokens=0,
                is_prefilling=True,
                request_index=index,
                stats=SimpleNamespace(num_generation_tokens=0),
            )
            call.sequences.append(sequence)
            self.requests[id(sequence)] = sequence
        return call

    def step(
        self, seconds: float, *decoding: FakeCall, prefill: int = 0, first: FakeCall | None = None
    ) -> None:
        """A step that decodes all sequences of `decoding`, and ends the prefill of `first`."""
        self.now += seconds
        sequences = [sequence for call in decoding for sequence in call.sequences]
        for sequence in sequences:
            sequence.stats.num_generation_tokens += 1
        for sequence in first.sequences if first is not None else ():
            sequence.is_prefilling = False
            sequence.stats.num_generation_tokens = 1
        results = bool(sequences) or first is not None
        self.meter.step(prefill, len(sequences), len(sequences), results)

    def end(self, call: FakeCall, status: int | None = 200) -> None:
        """A call's sequences are gone, and then the call."""
        for sequence in call.sequences:
            self.requests.pop(id(sequence), None)
        call.status = status
        assert call.usage is not None
        self.meter.end(call.usage)

    def take(self) -> dict[Account, Amounts]:
        """The usage since the last call, which is also summed in `amounts`."""
        taken = self.meter.take()
        for account, each in taken.items():
            self.amounts.setdefault(account, Amounts()).add(each)
        return taken

    def gpu_seconds(self) -> dict[str, float]:
        """GPU-seconds so far, by key or state."""
        self.take()
        seconds: dict[str, float] = {}
        for account, each in self.amounts.items():
            name = account.key if account.state == "used" else account.state
            seconds[name] = seconds.get(name, 0.0) + each.gpu_seconds
        return seconds
