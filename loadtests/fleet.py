"""The replicas of a model during a run, and their cost."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadtests.columns import COLD_S, Floats
from loadtests.record import Record, Run
from loadtests.scenario import Scenario


@dataclass(frozen=True, slots=True)
class GpuSeconds:
    """GPU-seconds by state of the replica. A pending replica has no GPU yet."""

    ready: float
    """Serving or idle, which looks from outside cannot distinguish."""
    starting: float
    draining: float

    @property
    def total(self) -> float:
        """The sum."""
        return self.ready + self.starting + self.draining


@dataclass(frozen=True, slots=True)
class Fleet:
    """One model's replicas from the start of the run on. A change between two looks is dated by the later."""

    model: str
    gpu_seconds: GpuSeconds
    dollars: float
    """0 where the scenario has no price."""
    starts_at: int
    """Ready at the last look before the first request, or at the first look."""
    peak_ready: int
    first_ready_s: float | None
    """When a replica was ready first: at the first look that saw one, or, where an answer began between two
    looks, at its first piece. None if none ever was."""
    target_changes: int
    """Changes from look to look."""
    scale_events: int
    """Replicas that became ready and replicas that ceased to be, each counted as one."""
    broken_per_1000_events: float | None
    """Broken streams for each 1,000 of these; None without any."""
    held_to_ready_s: float | None
    """From the intended time of the first request held because no replica was ready, to the
    first that was, by a look or by the first piece of a request that was held. None if there was no such
    request, or no replica came."""
    returned_s: float | None
    """From the end of the model's last request until at most `scaling.returns_to` were ready or starting, for
    good. None where that is not asked for, or never came."""
    longest_gap_s: float
    """Between two looks: how exact the times are."""


def fleets(run: Run, scenario: Scenario) -> tuple[Fleet, ...]:
    """The fleets of the models that were asked, by name. A model without reported replicas has none."""
    asked = {record.model for record in run.records}
    models = sorted({sample.model for sample in run.samples if sample.ready >= 0 and sample.model in asked})
    return tuple(_fleet(model, run, scenario) for model in models)


def _fleet(model: str, run: Run, scenario: Scenario) -> Fleet:
    looks = sorted((s for s in run.samples if s.model == model), key=lambda s: s.at_s)
    looks = looks[next(at for at, look in enumerate(looks) if look.ready >= 0) :]
    looks = looks[max(0, sum(look.at_s <= 0 for look in looks) - 1) :]
    records = [record for record in run.records if record.model == model]
    at = np.array([look.at_s for look in looks])
    ready, starting = _known([look.ready for look in looks]), _known([look.starting for look in looks])
    seconds = GpuSeconds(
        *(
            scenario.cost.gpus_per_replica * _integral(at, values, run.duration_s)
            for values in (ready, starting, _known([look.draining for look in looks]))
        )
    )
    events = int(np.abs(np.diff(ready)).sum())
    broken = sum(record.outcome == "broken" for record in records)
    return Fleet(
        model=model,
        gpu_seconds=seconds,
        dollars=seconds.total / 3600 * scenario.cost.price_per_gpu_hour,
        starts_at=int(_before(at, ready, min((record.at_s for record in records), default=0.0))),
        peak_ready=int(ready.max()),
        first_ready_s=_first_ready(at, ready, records),
        target_changes=int(np.count_nonzero(np.diff(_known([look.target for look in looks])))),
        scale_events=events,
        broken_per_1000_events=1000 * broken / events if events else None,
        held_to_ready_s=_held_to_ready(at, ready, records),
        returned_s=_returned(at, ready + starting, records, scenario.scaling.returns_to),
        longest_gap_s=float(np.diff(at).max()) if len(at) > 1 else 0.0,
    )


def _known(counts: Sequence[int]) -> Floats:
    """An unknown count, -1, becomes the last known one; before that, 0."""
    values = np.array(counts, dtype=np.float64)
    known = np.maximum.accumulate(np.where(values >= 0, np.arange(len(values)), -1))
    return np.where(known >= 0, values[known], 0.0)


def _integral(at: Floats, values: Floats, until_s: float) -> float:
    """Replica-seconds of the run: each look holds until the next, the last until the end."""
    edges = np.clip(np.append(at, max(until_s, float(at[-1]))), 0.0, None)
    return float((values * np.diff(edges)).sum())


def _before(at: Floats, values: Floats, when: float) -> float:
    return float(values[max(0, int(np.searchsorted(at, when, side="right")) - 1)])


def _first_ready(at: Floats, ready: Floats, records: Sequence[Record]) -> float | None:
    pieces = [record.pieces_s[0] for record in records if record.pieces_s]
    return min([*at[ready > 0][:1].tolist(), *pieces], default=None)


def _held_to_ready(at: Floats, ready: Floats, records: Sequence[Record]) -> float | None:
    held = min((record.at_s for record in records if record.cold_wait_s > COLD_S), default=None)
    if held is None or _before(at, ready, held) > 0:
        return None
    late = at >= held
    came = _first_ready(at[late], ready[late], [record for record in records if record.cold_wait_s > COLD_S])
    return None if came is None else came - held


def _returned(at: Floats, there: Floats, records: Sequence[Record], most: int | None) -> float | None:
    """`there` includes starting replicas: one that comes up after the last answer must still go."""
    if most is None:
        return None
    ended = max((record.ended_s for record in records), default=0.0)
    above = np.flatnonzero(there > most)
    if not len(above):
        return 0.0
    if above[-1] == len(at) - 1:
        return None
    return max(0.0, float(at[above[-1] + 1]) - ended)
