"""The reports on their way to the production policy: on time, late, or lost."""

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

Source = TypeVar("Source", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Reporting:
    """Delays and losses of reports, in seconds since the replay began.

    Baseline policies see samples of the fleet instead of reports, without delays and losses.
    """

    late_s: tuple[float, float] = (0.0, 0.0)
    """Least and most seconds that a report of a replica or of the ingress takes, drawn evenly for each."""
    mute_s: tuple[float, float] | None = None
    """The first and last second in which the reports of the oldest ready replica are lost. None: never."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError for a time below 0, or a first time beyond the second."""
        for name, value in (("late_s", self.late_s), ("mute_s", self.mute_s or (0.0, 0.0))):
            if not 0 <= value[0] <= value[1]:
                raise ValueError(f"{name} = {value!r}: must be (first, last), from 0")


@dataclass(frozen=True, slots=True)
class Report(Generic[Source]):
    """Values that `source` measured at `measured_at`."""

    source: Source
    measured_at: float
    values: Sequence[float]


class Mail(Generic[Source]):
    """Reports on their way."""

    def __init__(self, reporting: Reporting) -> None:
        self._reporting = reporting
        self._random = np.random.default_rng(reporting.seed)
        self._under_way: list[tuple[float, Report[Source]]] = []
        self._newest: dict[Source, float] = {}
        self._mute: int | None = None

    def mute(self, numbers: Collection[int], now: float) -> int | None:
        """The one of these replica numbers whose reports are lost now; None if none are."""
        first, last = self._reporting.mute_s or (np.inf, np.inf)
        if not first <= now < last:
            return None
        if self._mute not in numbers:
            self._mute = min(numbers, default=None)
        return self._mute

    def send(self, source: Source, now: float, values: Sequence[float]) -> None:
        """Take a report that was measured now."""
        least, most = self._reporting.late_s
        late_s = float(self._random.uniform(least, most)) if most else 0.0
        self._under_way.append((now + late_s, Report(source, now, values)))

    def take_arrived(self, now: float) -> list[Report[Source]]:
        """Remove and return the reports that have arrived by now.

        As in Ray's controller, a report is dropped if a newer one of its source has overtaken it.
        """
        due = [report for at, report in self._under_way if at <= now]
        self._under_way = [(at, report) for at, report in self._under_way if at > now]
        found = []
        for report in due:
            if report.measured_at >= self._newest.get(report.source, 0.0):
                self._newest[report.source] = report.measured_at
                found.append(report)
        return found
