"""Ray Serve's own autoscaling, by the number of requests."""

import math

from benchmarks.peers.ray_reports import HandleReports
from replay.ray_semantics import CONTROL_LOOP_S
from replay.sample import Sample

_EPS_S = 1e-6
TARGET_ONGOING_REQUESTS = 2.0


class RayDefault:
    """Ray Serve 2.60 with a deployment's default policy.

    desired = total / target, where total is the mean of requests running and queued (`HandleReports`); it is
    approached by `ceil(ready + factor * (desired - ready))`. A change must have been wanted for its delay
    without a pause, in seconds since it was wanted first; a change of direction begins anew. Where nothing is
    ready and something is queued, `max(ceil(upscaling factor), target)` is asked for at once. Zero is reached
    from one only, after `downscale_to_zero_delay_s`.

    Source: `ray/serve/autoscaling_policy.py` of Ray 2.60.0 with `AutoscalingConfig`'s defaults, except that 0
    replicas are allowed. The tests hold it to Ray's own code. (Ray Serve LLM sets the target to 1e9 and so
    never scales by itself.)
    """

    interval_s = CONTROL_LOOP_S

    def __init__(
        self,
        target_ongoing_requests: float = TARGET_ONGOING_REQUESTS,
        *,
        upscale_delay_s: float = 30.0,
        downscale_delay_s: float = 600.0,
        downscale_to_zero_delay_s: float | None = None,
        upscaling_factor: float = 1.0,
        downscaling_factor: float = 1.0,
        min_replicas: int = 0,
        max_replicas: int = 10_000,
        look_back_period_s: float = 30.0,
        metrics_interval_s: float = 10.0,
    ) -> None:
        usual = target_ongoing_requests == TARGET_ONGOING_REQUESTS
        self.name = "ray" if usual else f"ray:{target_ongoing_requests:g}"
        self._requests = target_ongoing_requests
        self._up_delay_s = upscale_delay_s
        self._down_delay_s = downscale_delay_s
        to_zero = downscale_to_zero_delay_s
        self._zero_delay_s = downscale_delay_s if to_zero is None else to_zero
        self._up_factor = upscaling_factor
        self._down_factor = downscaling_factor
        self._least = min_replicas
        self._most = max_replicas
        self._reports = HandleReports(look_back_period_s, metrics_interval_s)
        self._direction = 0
        self._since: float | None = None

    def decide(self, sample: Sample) -> int:
        """One turn of Ray's controller."""
        total = self._reports.total(sample)
        replicas = self._decide(total, sample.ready, sample.target, sample.at)
        self._reports.observe(sample)
        return max(self._least, min(self._most, replicas))

    def _decide(self, total: float, ready: int, target: int, now: float) -> int:
        if ready == 0:
            if total > 0:
                return max(math.ceil(self._up_factor), target)
            return target if target > 0 else self._delayed(0, 0, now)
        # As Ray has it: `ready` cancels but for rounding, which decides at a whole number.
        desired = ready * (total / (self._requests * ready))
        return self._delayed(max(0, self._stepped(desired, ready)), target, now)

    def _stepped(self, desired: float, ready: int) -> int:
        """`desired` by one step from `ready`, which is at least one replica down."""
        missing = desired - ready
        step = math.ceil(ready + (self._up_factor if missing > 0 else self._down_factor) * missing)
        return step - 1 if math.ceil(desired) < ready and step == ready else step

    def _delayed(self, desired: int, target: int, now: float) -> int:
        """`desired` if it has been wanted for long enough, else `target`."""
        direction = (desired > target) - (desired < target)
        if direction != self._direction:
            self._since = None
        self._direction = direction
        if direction == 0:
            return target
        if self._since is None:
            self._since = now
        if direction > 0:
            delay_s = self._up_delay_s
        elif target == 1:
            delay_s = self._zero_delay_s
        else:
            delay_s = self._down_delay_s
            desired = max(1, desired)
        if now - self._since + _EPS_S < delay_s:
            return target
        self._since = None
        self._direction = 0
        return desired
