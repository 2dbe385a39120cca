"""Notice an engine that has sequences and takes no steps.

Once noticed, the engine loses its sequences to other replicas. To have no sequences is no sign of health; a
step is, or an answer to a call.
"""

from dataclasses import dataclass

LOOK_INTERVAL_S = 0.5
"""Interval of looks. The time between two looks counts as at most twice this, because this process may itself
have been stopped."""
NOTICED_AFTER_S = 3.5
"""With an interval of looks and one of heartbeats, an ingress knows within 5 s."""
_LONGEST_STEPS = 3.0
"""A step may take up to three times the longest one seen: on a CPU, a prefill step of a large model takes
many seconds."""


@dataclass(slots=True)
class StallDetector:
    """Measures for how long an engine has taken no step although it has sequences.

    An engine that has taken no step at all is never noticed: its statistics may be switched off.
    """

    stalled_s: float = 0.0
    longest_step_s: float = 0.0
    """The longest step that has ended, measured by two looks a second."""
    _steps: int = 0
    _looked_at: float | None = None
    _still_since: float | None = None
    """When it was last seen to have taken a step, or first with sequences after it had none."""

    def look(self, steps: int, unfinished: int, now: float) -> None:
        """Take note of the engine's progress.

        Args:
            steps: Steps it has taken since its start.
            unfinished: Sequences it has, waiting or running.
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
        """Take note that the engine has answered a call that it takes between two steps."""
        self.stalled_s = 0.0
        self._still_since = None

    def standstill_s(self, now: float) -> float:
        """Return the least time for which the engine has stood still; 0 if that is not noticed.

        A sequence that came since then did not cause the standstill.
        """
        return now - self._still_since if self.noticed and self._still_since is not None else 0.0

    @property
    def noticed(self) -> bool:
        """Whether requests should go to other replicas."""
        return self.hung(NOTICED_AFTER_S)

    def hung(self, after_s: float) -> bool:
        """Return whether it has taken no step for `after_s`, nor for three of its longest steps."""
        return self.stalled_s >= max(after_s, _LONGEST_STEPS * self.longest_step_s)
