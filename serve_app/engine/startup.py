"""Start-up phases of one engine replica: timed, logged and published while they last."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

logger = logging.getLogger("ray.serve")

Publish = Callable[[str], None]


@dataclass(slots=True)
class Startup:
    """The phases a replica has been through, in order, with their seconds.

    `publish` is called with a JSON document at every change: the phase it is in, since when
    (Unix time) and the durations so far.
    """

    model: str
    publish: Publish
    wall: Callable[[], float] = time.time
    clock: Callable[[], float] = time.monotonic
    durations: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the block as phase `name`; a failure is published with its reason and re-raised."""
        self._tell(name)
        started = self.clock()
        try:
            yield
        except BaseException as error:
            self._tell("failed", during=name, reason=f"{type(error).__name__}: {error}"[:2000])
            raise
        self.durations[name] = self.durations.get(name, 0.0) + self.clock() - started
        logger.info("model %s: phase %s took %.2f s", self.model, name, self.durations[name])

    def finish(self) -> None:
        """Publish readiness and log the whole in one line."""
        self._tell("ready")
        spent = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in self.durations.items())
        logger.info("model %s: ready after %.2f s (%s)", self.model, sum(self.durations.values()), spent)

    def _tell(self, phase: str, **more: str) -> None:
        document = {"phase": phase, "since": self.wall(), "durations_s": self.durations, **more}
        self.publish(json.dumps(document))
