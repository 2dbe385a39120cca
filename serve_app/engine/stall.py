"""Notice an engine that has sequences and takes no steps.

A stalled engine loses its sequences to other replicas, so an engine without sequences is not healthy for that
reason. Only a step, or an answer to a call, shows that the engine works again.
"""

from dataclasses import dataclass

LOOK_INTERVAL_S = 0.5
"""The time between two looks. Longer gaps count as at most twice this time, because this process may itself
have been stopped."""
NOTICED_AFTER_S = 3.5
"""With the intervals of looks and of heartbeats, an ingress knows within 5 s."""
_LONGEST_STEPS = 3.0
"""A step may take three times the longest step so far. On a CPU, a prefill step of a large model takes many
seconds."""


@dataclass(slots=True)
class StallDetector:
    """Measures for how long an engine has taken no step although it has sequences.

    An engine without any step is never noticed, because its statistics may be off.
    """

    stalled_s: float = 0.0
    longest_step_s: float = 0.0
    """The longest finished step, measured by two looks per second."""
    _steps: int = 0
    _looked_at: float | None = None
    _still_since: float | None = None
    """When a step was last seen, or when an idle engine first had sequences again."""

    def look(self, steps: int, unfinished: int, now: float) -> None:
        """Record the engine's progress.

        Args:
            steps: Steps since the engine's start.
            unfinished: The engine's sequences, waiting or running.
            now: Seconds of a clock that never goes back.
        """
        passed = min(now - self._looked_at, 2 * LOOK_INTERVAL_S) if self._looked_at is not None else 0.0
        self._looked_at = now
        if steps != self._steps:
            self.longest_step_s = max(self.longest_step_s, self.stalled_s)
        idle = not unfinished and not self.noticed
        if steps != self._steps or idle or not steps:
            self._still_since = None if idle else now
            self.stalled_s = 0.0
            self._steps = steps
        else:
            self._still_since = self._still_since or now
            self.stalled_s += passed

    def note_answer(self) -> None:
        """Record that the engine has answered a call. It answers calls between two steps."""
        self.stalled_s = 0.0
        self._still_since = None

    def standstill_s(self, now: float) -> float:
        """Return the least time for which a stalled engine has stood still; 0 if it is not stalled.

        A sequence that arrived within this time did not cause the stall.
        """
        return now - self._still_since if self.noticed and self._still_since is not None else 0.0

    @property
    def noticed(self) -> bool:
        """Whether requests should go to other replicas."""
        return self.hung(NOTICED_AFTER_S)

    def hung(self, after_s: float) -> bool:
        """Return whether no step came for `after_s` seconds, nor for three times the longest step."""
        return self.stalled_s >= max(after_s, _LONGEST_STEPS * self.longest_step_s)
