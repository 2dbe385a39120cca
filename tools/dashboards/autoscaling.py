"""What the autoscaling policy does, and why: replicas, what set their number, cold starts, capacity."""

from __future__ import annotations

from tools.dashboards.colours import ARRIVALS, PERCENTILES, PLAIN, READY, STATES, TERMS
from tools.dashboards.dashboard import Dashboard, Row
from tools.dashboards.decisions import DECISIONS, POLICY_ERRORS
from tools.dashboards.latency import held_requests
from tools.dashboards.panels import PER_MINUTE, Line, Panel, Query, coloured
from tools.dashboards.promql import (
    SHOWN,
    STEP,
    cluster,
    counted,
    or_zero,
    ours,
    per_minute,
    quantile,
    rate,
    total,
)
from tools.dashboards.targets import NEUTRAL, Step, bad_above, worse_above

_NONE = "the policy has not reported"
_ERRORS = cluster("llm_autoscaling_policy_errors_total")
_STACKED = ("ready", "starting", "pending", "draining")
_LINES = ("target", "wanted")


def _replicas(state: str) -> str:
    return ours(f"llm_autoscaling_{state}_replicas")


def _stat(state: str, text: str, steps: tuple[Step, ...] = NEUTRAL) -> Panel:
    title = state.capitalize()
    query = Query(or_zero(total(_replicas(state))), title)
    return Panel(title, text, "short", (query,), kind="stat", width=3, height=4, steps=steps)


_STATS = (
    _stat("target", "Replicas asked for, of the models chosen."),
    _stat("ready", "Replicas that take requests."),
    _stat("starting", "Replicas that load their model; each takes about a cold start."),
    _stat(
        "pending",
        "Replicas asked for that have no place. Normal while the cluster adds a node; if they stay, a worker "
        "group is at its maxWorkers, or no node has the GPUs: describe the pending pods.",
        worse_above(1),
    ),
    _stat("draining", "Replicas that finish their streams before they stop, for drain_timeout_s at most."),
    Panel(
        "Held",
        "Requests that wait at the ingress for a replica.",
        "short",
        (Query(or_zero(total(ours("llm_held_requests"))), "Held"),),
        kind="stat",
        width=3,
        height=4,
        steps=worse_above(1),
    ),
    Panel(
        "Cold start",
        "Typical time from a replica's process to its readiness, as measured; the longest of the models "
        "chosen. A pod's and a node's start come before it.",
        "s",
        (Query(total(ours("llm_autoscaling_cold_start_seconds"), how="max"), "Cold start"),),
        kind="stat",
        width=3,
        height=4,
        empty="none yet",
    ),
    Panel(
        "Policy errors",
        "Exceptions of the policy in the time shown. It keeps every target when it fails; the log of Ray "
        "Serve's controller, in the head pod, has the reason.",
        "short",
        (Query(or_zero(counted(_ERRORS, SHOWN)), "Policy errors"),),
        kind="stat",
        width=3,
        height=4,
        over_range=True,
        steps=bad_above(0.5),
        decimals=0,
    ),
)

_FLEET_LOOKS = {
    **{state: Line(STATES[state]) for state in _STACKED},
    **{name: Line(STATES[name], dashed=True) for name in _LINES},
}


def _fleet(title: str, text: str) -> Panel:
    return Panel(
        title,
        text,
        "short",
        tuple(Query(total(_replicas(state)), state) for state in (*_STACKED, *_LINES)),
        width=12,
        stacked=True,
        lines=_FLEET_LOOKS,
        decimals=0,
        empty=_NONE,
    )


_ALL = (
    _fleet(
        "Replicas of all models chosen",
        "Replicas by what they are doing; the dashed lines are what is asked for (target) and what the "
        "load calls for before delays (wanted). A target above ready + starting is pending. Marks are "
        "decisions.",
    ),
    Panel(
        "Changes of the target",
        "Changes per minute. Ups and downs in turn, within minutes, cost cold starts: raise "
        "downscale_delay_s or headroom.",
        PER_MINUTE,
        tuple(
            Query(
                or_zero(per_minute(ours("llm_autoscaling_decisions_total", f'direction="{direction}"'))),
                direction,
            )
            for direction in ("up", "down")
        ),
        width=6,
        lines=coloured({"up": STATES["starting"], "down": STATES["draining"]}),
    ),
    Panel(
        "Policy errors per minute",
        "While the policy fails, nothing is scaled.",
        PER_MINUTE,
        (Query(or_zero(per_minute(_ERRORS)), "errors"),),
        width=6,
        lines=coloured({"errors": TERMS["max_replicas"]}),
    ),
)

_CAPACITY = total(ours("llm_autoscaling_replica_capacity_rps"), ("model",), "max")
_EACH = (
    _fleet(
        "Replicas",
        "Replicas of this model by what they are doing; the dashed lines are what is asked for (target) "
        "and what the load calls for before delays (wanted).",
    ),
    Panel(
        "What set the target",
        "The term or clamp that was binding. Blue: load (arrivals, ttft, queue, queue_tokens, kv_cache, "
        "forecast). Green: standing orders (wake, keep_alive, schedule, min_replicas). Violet: something "
        "holds the target back (delay, signals, hold, mode). Red: max_replicas; more is wanted. `tideserve "
        "explain` has the numbers.",
        "short",
        (Query(f"{total(ours('llm_autoscaling_binding'), ('term',), 'max')} == 1", "{{term}}"),),
        kind="state-timeline",
        width=12,
        lines=coloured(TERMS),
        empty=_NONE,
    ),
    Panel(
        "Capacity and arrivals",
        "Requests per second that arrive, that the ready replicas carry within their targets, and that one "
        "replica carries, as the policy has learned. Arrivals above capacity: more replicas should be "
        "starting.",
        "reqps",
        (
            Query(or_zero(rate(ours("llm_arrivals_total"))), "arrivals"),
            Query(f"sum({_CAPACITY} * {total(_replicas('ready'), ('model',))})", "ready replicas"),
            Query(f"max({_CAPACITY})", "one replica"),
        ),
        lines={
            "arrivals": Line(ARRIVALS),
            "ready replicas": Line(READY),
            "one replica": Line(PLAIN, dashed=True),
        },
    ),
    held_requests(),
    Panel(
        "Cold starts",
        "How long requests were held that met a cold start, and the typical time from a replica's process "
        "to its readiness. Waits far above it: pods or nodes start slowly, or the image or the weights are "
        "not there.",
        "s",
        (
            Query(quantile(0.5, "llm_cold_wait_seconds", STEP), "P50"),
            Query(quantile(0.95, "llm_cold_wait_seconds", STEP), "P95"),
            Query(total(ours("llm_autoscaling_cold_start_seconds"), how="max"), "typical start"),
        ),
        lines={
            **coloured({name: PERCENTILES[name] for name in ("P50", "P95")}),
            "typical start": Line(PLAIN, dashed=True),
        },
        points=True,
        empty="none yet",
    ),
)

DASHBOARD = Dashboard(
    name="autoscaling",
    title="Tideserve / Autoscaling",
    text="Replicas wanted, asked for and there, what set their number, and what cold starts cost users.",
    rows=(Row("", _STATS), Row("Fleet", _ALL), Row("$model", _EACH, for_each="model")),
    annotations=(DECISIONS, POLICY_ERRORS),
)
