"""The bound on engine steps that have `background` sequences beside running sequences of other lanes.

The knobs bound the time of such a step (`Knobs.background_step_s`). The scheduler can bound only its tokens.
So the tokens follow the measured times of steps, whatever the model, the hardware and the contexts.
"""

import time
from collections.abc import Callable

_GROWTH = 1 / 16
"""Growth passes the bound by at most this share of the tokens. If the tokens of `background` take half of a
step, the step is then 3 % too long. The bound itself is 20 % below the knob."""
_DECREASE = 3 / 4
"""From 2,048 tokens to 65 in 12 changes. At the bound, one change in six is a decrease, and the mean limit is
87 % of the highest. With a factor of 1/2, one change in thirteen would be a decrease, and the mean limit 72 %
of the highest."""
_LONGEST_PAUSE = 31
"""Steps. The step after them has no limit: one in 32 is less than the 5 % of steps that a P95 leaves out."""


class BackgroundBound:
    """Limits the tokens that `background` sequences get in a step.

    Call `begin_step` when a step is scheduled, and after a step with a limit `end_step`.

    Args:
        clock: Seconds, as `time.monotonic` gives them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.step_s = 0.0
        """The most seconds of a step; 0: no bound."""
        self._clock = clock
        self._limit = 1.0  # the first steps must not be too long either
        self._steps = 0
        """Consecutive steps with the present limit."""
        self._began = 0.0
        self._used = 0
        self._paused = 0
        """Consecutive steps in which `background` got no token."""

    def begin_step(self, shared: bool) -> int | None:
        """Return the most tokens of `background` in the step that begins; None without a limit.

        Args:
            shared: Whether the step has running sequences of other lanes, and may have `background` ones.
        """
        if not shared or self.step_s <= 0:
            self._steps = 0
            return None
        if self._paused >= _LONGEST_PAUSE:
            # A sequence may need more tokens at once than the limit, such as a block of a Mamba cache.
            self._steps = self._paused = 0
            return None
        now = self._clock()
        # An asynchronous scheduler is a step ahead: since the last call, the step before the last has run. So
        # the time shows the present limit only after two steps.
        if self._steps >= 2:
            self._change(now - self._began)
        self._began = now
        self._steps += 1
        return int(self._limit)

    def end_step(self, used: int) -> None:
        """Note the tokens of `background` in a step that had a limit."""
        self._used = used
        self._paused = 0 if used else self._paused + 1

    def _change(self, step_s: float) -> None:
        if step_s > self.step_s:
            self._limit = max(1.0, self._limit * _DECREASE)
        elif 2 * self._used >= int(self._limit):  # a limit that few tokens reach says nothing about more
            self._limit += max(1.0, self._limit * _GROWTH)
        self._steps = 0
