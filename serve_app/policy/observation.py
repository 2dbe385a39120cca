"""What is reported of one model at one moment, summed up."""

from dataclasses import dataclass

from serve_app.wire.signals import EngineSignals


@dataclass(frozen=True, slots=True)
class Observation:
    """Sums over the fresh reports about one model at one moment."""

    running_requests: float
    running_tokens: float
    waiting_requests: float
    """Requests in engine queues."""
    waiting_tokens: float
    held_requests: float
    """Requests that ingress replicas hold during a cold start."""
    held_tokens: float
    oldest_held_s: float
    newest_held_s: float
    arrivals: float
    """Requests since the last decision."""
    kv_cache_tokens: float
    """Tokens that the KV cache of one replica holds."""
    unknown_engines: int
    """Ready replicas without a fresh report."""
    ingress_known: bool
    ages_s: dict[str, float]
    notes: tuple[str, ...]
    engines: tuple[EngineSignals, ...]
    """The fresh reports of engine replicas."""

    @property
    def queued_requests(self) -> float:
        """Requests that wait in engines or in the ingress."""
        return self.waiting_requests + self.held_requests

    @property
    def queued_tokens(self) -> float:
        """Prompt tokens that wait in engines or in the ingress."""
        return self.waiting_tokens + self.held_tokens

    @property
    def idle(self) -> bool:
        """Whether the model is known to have nothing to do; a model with silent replicas is not."""
        known = self.ingress_known and not self.unknown_engines
        return known and not (self.running_requests or self.queued_requests or self.arrivals)
