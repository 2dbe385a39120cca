"""Whether a measurement would measure one replica and nothing else. Pure."""

from __future__ import annotations

from replay.capacity.capacity_error import MeasurementError
from replay.capacity.exposition import Scrape, arrivals_between, steps_between
from replay.capacity.server import Readiness
from replay.fit import StepSample
from serve_app.settings.knobs import Knobs


def check_alone(model: str, seen: Readiness, knobs: Knobs) -> None:
    """Exactly one replica, and no other on its way.

    Raises:
        MeasurementError: with how to pin one.
    """
    pin = f"pin one: tideserve knobs set {model} min_replicas=1 max_replicas=1"
    if seen.replicas != 1 or seen.target_replicas > 1:
        state = f", {seen.phase}" if seen.phase else ""
        why = f" ({seen.reason})" if seen.reason else ""
        raise MeasurementError(
            f"{model} has {seen.replicas} ready replicas and {seen.target_replicas} running or on their "
            f"way{state}{why}; one ready is needed. To {pin}, and wait until /ready says so"
        )
    if knobs.max_replicas > 1 and knobs.mode == "act":
        raise MeasurementError(
            f"max_replicas of {model} is {knobs.max_replicas}, and the load would start more replicas; {pin}"
        )


class TrafficGuard:
    """Turns scrapes into samples, and notices requests and replicas that are not the measurement's.

    Args:
        model: Its name, for messages.
        first: The scrape to count from, with no request of the measurement under way.
    """

    def __init__(self, model: str, first: Scrape) -> None:
        if first.busy_requests:
            raise MeasurementError(
                f"{model} has {first.busy_requests:.0f} requests under way; measure it without other traffic"
            )
        self._model = model
        self._first = self._last = first
        self._replica: str | None = None

    def add(self, scrape: Scrape, sent: int) -> StepSample | None:
        """The mean step since the last scrape; None if there was none.

        Args:
            scrape: The newest.
            sent: Requests that the measurement has sent since `first`, so far.

        Raises:
            MeasurementError: for requests of others, or steps of another replica.
        """
        # Counters are a second or two behind, so more than were sent can only be others'.
        others = arrivals_between(self._first, scrape) - sent
        if others > 0:
            raise MeasurementError(
                f"{others:.0f} requests of others reached {self._model} meanwhile; "
                "measure it without other traffic"
            )
        samples = steps_between(self._last, scrape)
        self._last = scrape
        for replica in samples:
            self._replica = self._replica or replica
            if replica != self._replica:
                raise MeasurementError(
                    f"another replica of {self._model} took steps meanwhile: {replica} beside {self._replica}"
                )
        return samples.get(self._replica or "")
