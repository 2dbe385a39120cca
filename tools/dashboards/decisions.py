"""The policy's decisions and errors as marks in time, on every dashboard where they explain something."""

from __future__ import annotations

from tools.dashboards.colours import MISSED, STARTING
from tools.dashboards.dashboard import Annotation
from tools.dashboards.promql import cluster, ours, total

_STEP = "$__interval"
"""Of the points at which Grafana looks for marks: a change is above 0 at the one that follows it."""


def _gained(series: str, by: tuple[str, ...]) -> str:
    """What a counter gained since the point before; all of it if it was not there then."""
    now, before = total(series, by), total(f"{series} offset {_STEP}", by)
    return f"{now} - ({before} or {now} * 0) > 0"


_CHANGES = _gained(ours("llm_autoscaling_decisions_total"), ("model", "direction"))
_BINDING = total(ours("llm_autoscaling_binding"), ("model", "term"), "max")
# Of equals one is taken: two terms for a model, as in the moment of a new policy, would fail the query.
_ONE_BINDING = f"topk by (model) (1, {_BINDING} == 1)"

DECISIONS = Annotation(
    name="Decisions",
    expr=f"({_CHANGES}) * on (model) group_left (term) {_ONE_BINDING}",
    title="{{model}} {{direction}}",
    text="Target changed {{direction}}; binding at the scrape that followed: {{term}}",
    colour=STARTING,
)
POLICY_ERRORS = Annotation(
    name="Policy errors",
    expr=_gained(cluster("llm_autoscaling_policy_errors_total"), ()),
    title="Policy error",
    text="The policy raised and every target was kept. The log of Ray Serve's controller has the reason.",
    colour=MISSED,
)
