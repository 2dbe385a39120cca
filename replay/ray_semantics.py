"""The calls and rules of Ray Serve 2.60 around an application-level autoscaling policy, without Ray.

Ray calls the policy every `CONTROL_LOOP_S` with one context per deployment. The answer goes through Ray's
factors, delays, cold-start rule and bounds before it is a target. `serve_app.app.open_bounds` sets factors of
1 and no delays, so the target depends on the contexts alone, and `apply` has no state. Ray makes a new policy
whenever the application's configuration changes. The new policy knows only what its mailbox has.

Reports come once an interval (`ENGINE_INTERVAL_S` for engines, half a second for the ingress, see
`serve_app.app`). A replica samples its statistics and pushes them in two loops of that same interval; the
newest sample is what the policy looks at. Only replicas that run are in `running_replicas` and `raw_metrics`.

Source: `ray/serve/autoscaling_policy.py` and `ray/serve/_private/autoscaling_state.py` of Ray 2.60.0.
The tests compare this module with Ray's.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from replay.defaults import MOST_REPLICAS

CONTROL_LOOP_S = 0.1
"""Seconds between two calls of the policy; `RAY_SERVE_CONTROL_LOOP_INTERVAL_S`."""

Key = TypeVar("Key")


@dataclass(slots=True)
class Context:
    """One deployment for a policy: the fields of Ray's `AutoscalingContext` that the policy reads."""

    deployment_name: str
    app_name: str
    target_num_replicas: int
    """Replicas asked for. A policy may set it, and Ray then uses that value."""
    current_num_replicas: int
    """Replicas that run."""
    running_replicas: Sequence[Any]
    """Each with a `unique_id`."""
    raw_metrics: Mapping[str, Mapping[Any, Sequence[Any]]]
    """By name and replica, samples with `timestamp` and `value`, the newest last."""
    total_num_requests: float = 0.0
    """Requests queued in deployment handles and running, averaged over the look-back period."""
    capacity_adjusted_min_replicas: int = 0
    capacity_adjusted_max_replicas: int = MOST_REPLICAS
    _target: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._target = self.target_num_replicas


def apply(contexts: Mapping[Key, Context], answer: Mapping[Key, float]) -> dict[Key, int]:
    """The target of every context after Ray's rules are applied to a policy's answer."""
    return {
        key: _target(context, answer[key]) if key in answer else context._target
        for key, context in contexts.items()
    }


def _target(context: Context, answer: float) -> int:
    replicas = _unbounded(context, answer)
    least, most = context.capacity_adjusted_min_replicas, context.capacity_adjusted_max_replicas
    return max(least, min(most, replicas))


def _unbounded(context: Context, answer: float) -> int:
    target, current = context.target_num_replicas, context.current_num_replicas
    if current == 0 and context.total_num_requests > 0:
        return max(1, target)  # the cold-start rule overrides the policy
    desired = max(0, math.ceil(answer))
    if desired < target and target != 1:
        return max(1, desired)  # only one replica may become zero
    return desired
