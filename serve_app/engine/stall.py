"""Noticing an engine that has sequences and takes no steps."""

from __future__ import annotations

from dataclasses import dataclass

LOOK_INTERVAL_S = 0.5
"""How often to look. Time between two looks counts as at most twice this: this process may have been stopped
itself, and then says nothing of the engine."""
NOTICED_AFTER_S = 3.5
"""With an interval of looks and one of heartbeats, an ingress knows within 5 s."""
_LONGEST_STEPS = 3.0
"""A step that takes up to three times the longest one seen is slow, and no reason for alarm: on a CPU the
prefill of a large model takes many seconds a step."""


@dataclass(slots=True)
class StallDetector:
    """How long an engine has stood still: no step taken, though it has sequences.

    Nothing is said before the first step has been seen: one whose statistics are switched off shows none.
    """

    stalled_s: float = 0.0
    longest_step_s: float = 0.0
    """Of the steps that ended, as far as looks twice a second can tell."""
    _steps: int = 0
    _looked_at: float | None = None

    def look(self, steps: int, unfinished: int, now: float) -> None:
        """Take note of where the engine is.

        Args:
            steps: Steps it has taken since its start.
            unfinished: Sequences it has, waiting or running.
            now: Seconds of a clock that never goes back.
        """
        passed = min(now - self._looked_at, 2 * LOOK_INTERVAL_S) if self._looked_at is not None else 0.0
        self._looked_at = now
        if steps != self._steps:
            self.longest_step_s = max(self.longest_step_s, self.stalled_s)
        if steps != self._steps or not unfinished or not steps:
            self.stalled_s = 0.0
            self._steps = steps
        else:
            self.stalled_s += passed

    @property
    def noticed(self) -> bool:
        """Whether requests had better go elsewhere."""
        return self.hung(NOTICED_AFTER_S)

    def hung(self, after_s: float) -> bool:
        """Whether it has stood still for `after_s`, and for longer than its own steps explain."""
        return self.stalled_s >= max(after_s, _LONGEST_STEPS * self.longest_step_s)
