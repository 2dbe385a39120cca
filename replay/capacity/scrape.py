"""The series of one model in a scrape of `/metrics`, and the steps between two scrapes. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from replay.fit import StepSample

_STEPS = "llm_steps_total"
_SUMS = (
    "llm_step_seconds_total",
    "llm_step_sequences_total",
    "llm_step_kv_tokens_total",
    "llm_step_prefill_tokens_total",
)
_ARRIVALS = "llm_arrivals_total"
_BUSY = ("llm_running_requests", "llm_waiting_requests")
_LIMITS = ("llm_kv_cache_tokens", "llm_max_num_seqs", "llm_max_num_batched_tokens")
_READ = frozenset((_STEPS, *_SUMS, _ARRIVALS, *_BUSY, *_LIMITS))
_LINES = tuple(f"{start}{name}" for name in sorted(_READ) for start in ("# TYPE ", ""))

# A mean over 500 steps is hardly truer than one over 50: scatter averages out, but not what the law
# leaves out, which is about as much as the scatter of ten steps.
_STEPS_OF_HALF_WEIGHT = 10.0


@dataclass(frozen=True, slots=True)
class Scrape:
    """One model's series: by name, then by replica. A counter that has counted nothing is absent."""

    values: Mapping[str, Mapping[str, float]]

    def of(self, name: str) -> Mapping[str, float]:
        """Values by replica."""
        return self.values.get(name, {})

    @property
    def busy_requests(self) -> float:
        """Requests in engines, running or waiting."""
        return sum(sum(self.of(name).values()) for name in _BUSY)

    def limits(self) -> tuple[int, int, int] | None:
        """KV cache tokens, sequences in a batch and tokens of a step; None while no replica says."""
        found = [max(self.of(name).values(), default=0.0) for name in _LIMITS]
        return None if not found[1] else (int(found[0]), int(found[1]), int(found[2]))


def read_scrape(text: str, model: str) -> Scrape:
    """The series of `model` in an exposition.

    Raises ValueError where its lines are not those of an exposition.
    """
    values: dict[str, dict[str, float]] = {}
    # The rest would keep the parser busy for 10 to 40 ms, and every request that is due meanwhile late.
    own = [line for line in text.splitlines() if line.startswith(_LINES)]
    for family in text_string_to_metric_families("\n".join(own) + "\n"):
        for sample in family.samples:
            if sample.name in _READ and sample.labels.get("model") == model:
                replica = sample.labels.get("replica", "")
                values.setdefault(sample.name, {})[replica] = sample.value
    return Scrape(values)


def arrivals_between(before: Scrape, after: Scrape) -> float:
    """Requests that reached the ingress. A replica that is new has counted all of its own since."""
    known = before.of(_ARRIVALS)
    return sum(max(0.0, count - known.get(replica, 0.0)) for replica, count in after.of(_ARRIVALS).items())


def steps_between(before: Scrape, after: Scrape) -> dict[str, StepSample]:
    """The mean step of every replica that took any, weighted by how many they were."""
    samples = {}
    for replica, steps in after.of(_STEPS).items():
        taken = steps - before.of(_STEPS).get(replica, 0.0)
        sums = [after.of(name).get(replica, 0.0) - before.of(name).get(replica, 0.0) for name in _SUMS]
        # Below 0 after a restart; without time if the scrape came between the counters of a report.
        if taken < 1.0 or sums[0] <= 0.0 or min(sums) < 0.0:
            continue
        step_s, batch, kv_tokens, prefill_tokens = (total / taken for total in sums)
        weight = taken / (taken + _STEPS_OF_HALF_WEIGHT)
        samples[replica] = StepSample(step_s, batch, kv_tokens, prefill_tokens, weight)
    return samples
