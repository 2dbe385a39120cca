"""What replicas cost: GPUs by what they do, money, money for tokens, and for idling."""

from __future__ import annotations

from functools import partial

from tools.dashboards.colours import PLAIN, STATES
from tools.dashboards.dashboard import Dashboard, Price, Row
from tools.dashboards.decisions import DECISIONS
from tools.dashboards.panels import Line, Panel, Query, coloured, stat
from tools.dashboards.promql import SHOWN, cluster, counted, ours, ratio, total

PRICE = Price("gpu_hour_price", "Price of a GPU-hour", "__GPU_HOUR_PRICE__")
_PRICE = f"${PRICE.name}"
_HELD = ("ready", "starting", "draining")
_NO_POLICY = "the policy has not reported"
_MONEY = "In the currency of the price above."
_SMOOTH = "1h"
"""Tokens and idling come in bursts; by the hour they can be compared."""


def _gpu_seconds(window: str, by: tuple[str, ...] = ()) -> str:
    """Replica-seconds times the GPUs of a replica; of a model that was changed, the most it had."""
    replicas = total(
        f"increase({ours('llm_autoscaling_replica_seconds_total')}[{window}])",
        ("namespace", "model", "state"),
    )
    gpus = total(
        f"last_over_time({ours('llm_autoscaling_gpus_per_replica')}[{window}])", ("namespace", "model"), "max"
    )
    return total(f"{replicas} * on (namespace, model) group_left () {gpus}", by)


def _gpu_hours(window: str, by: tuple[str, ...] = ()) -> str:
    return f"{_gpu_seconds(window, by)} / 3600"


def _money(window: str, by: tuple[str, ...] = ()) -> str:
    return f"{_gpu_hours(window, by)} * {_PRICE}"


def _gpus(by: tuple[str, ...] = ()) -> str:
    """GPUs that replicas hold at this moment, in the mean over a graph's step."""
    window = "$__rate_interval"
    return f"{_gpu_seconds(window, by)} / ($__rate_interval_ms / 1000)"


def _tokens(window: str, *kinds: str, by: tuple[str, ...] = ()) -> str:
    return " + ".join(counted(ours(f"llm_{kind}_tokens_total"), window, by) for kind in kinds)


def _per_million(window: str, *kinds: str, by: tuple[str, ...] = ()) -> str:
    return f"1e6 * {ratio(_money(window, by), _tokens(window, *kinds, by=by))}"


_WORK = " + ".join(
    total(ours(name), ("namespace", "model", "replica"))
    for name in ("llm_running_requests", "llm_waiting_requests")
)
_IDLE = f"({_WORK}) == bool 0"
"""1 for a replica with nothing to do, 0 for one that works."""


def _idle_share(window: str, by: tuple[str, ...] = ()) -> str:
    """Idle replica-time over replica-time, by a look a minute. The brackets are a subquery of PromQL's."""
    idle = total(_IDLE, by)
    there = total(_IDLE, by, "count")
    return f"sum_over_time(({idle})[{window}:1m]) / sum_over_time(({there})[{window}:1m])"


_stat = partial(stat, width=4, empty=_NO_POLICY, over_range=True, decimals=2)

_STATS = (
    _stat(
        "GPUs held",
        _gpus(),
        "short",
        "GPUs that replicas hold, be they loading, ready or draining.",
        over_range=False,
        decimals=1,
    ),
    _stat("Money per hour", f"{_gpus()} * {_PRICE}", "none", f"At this moment. {_MONEY}", over_range=False),
    _stat("Money", _money(SHOWN), "none", f"For the GPUs of replicas in the time shown. {_MONEY}"),
    _stat(
        "Per million generated",
        _per_million(SHOWN, "completion"),
        "none",
        "Money for a million tokens generated in the time shown, the prompts' work and idling included. It "
        f"falls with fuller batches and less idling. {_MONEY}",
        empty="no tokens",
    ),
    _stat(
        "Per million tokens",
        _per_million(SHOWN, "prompt", "completion"),
        "none",
        f"The same by all tokens, prompts included. {_MONEY}",
        empty="no tokens",
    ),
    _stat(
        "Idle",
        _idle_share(SHOWN),
        "percentunit",
        "Share of the replicas' time in the time shown in which nothing ran or waited in them. Models that "
        "are often idle want min_replicas: 0 or a shorter downscale_to_zero_delay_s; each wake costs a "
        "cold start.",
        decimals=1,
        empty="no replicas",
    ),
)

_LONG = "As far back as Prometheus keeps series."
_PERIODS = tuple(
    panel
    for window, name in (("1d", "last day"), ("30d", "last 30 days"))
    for panel in (
        Panel(
            f"GPU-hours, {name}",
            f"GPU-hours of replicas, whatever time is shown. {_LONG}",
            "none",
            (Query(_gpu_hours(window), f"GPU-hours, {name}"),),
            kind="stat",
            width=6,
            height=4,
            over_range=True,
            decimals=1,
            empty=_NO_POLICY,
        ),
        Panel(
            f"Money, {name}",
            f"The same times the price. {_MONEY} {_LONG}",
            "none",
            (Query(_money(window), f"Money, {name}"),),
            kind="stat",
            width=6,
            height=4,
            over_range=True,
            decimals=2,
            empty=_NO_POLICY,
        ),
    )
)

_COURSE = (
    Panel(
        "GPUs by what they do",
        "GPU-seconds per second, that is GPUs, by the state of their replicas. The dashed line is the GPUs "
        "that pods have: what is above the replicas is pods that wait for idleTimeoutSeconds, or start. "
        "Much starting: the target goes up and down too often.",
        "short",
        (
            Query(_gpus(("state",)), "{{state}}"),
            Query(total(cluster("ray_node_gpus_available")), "in pods"),
        ),
        width=12,
        stacked=True,
        lines={**coloured({name: STATES[name] for name in _HELD}), "in pods": Line(PLAIN, dashed=True)},
        empty=_NO_POLICY,
    ),
    Panel(
        "Money per hour by model",
        f"GPUs that replicas hold, times the price. {_MONEY}",
        "none",
        (Query(f"{_gpus(('model',))} * {_PRICE}", "{{model}}"),),
        width=12,
        stacked=True,
        decimals=2,
        empty=_NO_POLICY,
    ),
    Panel(
        "Money per million generated tokens",
        "Over the hour before each point, by model. High in quiet hours: replicas wait for requests. "
        f"{_MONEY}",
        "none",
        (Query(_per_million(_SMOOTH, "completion", by=("model",)), "{{model}}"),),
        width=12,
        decimals=2,
        empty="no tokens",
    ),
    Panel(
        "Idle share",
        "Share of replica-time in which nothing ran or waited in them, over the hour before each point, by "
        "model.",
        "percentunit",
        (Query(_idle_share(_SMOOTH, ("model",)), "{{model}}"),),
        width=12,
        maximum=1,
        empty="no replicas",
    ),
    Panel(
        "GPU-hours by state",
        "In the time shown. Starting and draining serve nobody: they are the price of scaling.",
        "none",
        (Query(_gpu_hours(SHOWN, ("state",)), "{{state}}"),),
        kind="bargauge",
        width=8,
        height=7,
        over_range=True,
        decimals=1,
        lines=coloured({name: STATES[name] for name in _HELD}),
        empty=_NO_POLICY,
    ),
    Panel(
        "GPU-hours by model",
        "In the time shown, whatever the replicas were doing.",
        "none",
        (Query(_gpu_hours(SHOWN, ("model",)), "{{model}}"),),
        kind="bargauge",
        width=8,
        height=7,
        over_range=True,
        decimals=1,
        empty=_NO_POLICY,
    ),
    Panel(
        "Tokens by model",
        "Tokens generated in the time shown.",
        "short",
        (Query(_tokens(SHOWN, "completion", by=("model",)), "{{model}}"),),
        kind="bargauge",
        width=8,
        height=7,
        over_range=True,
        empty="no tokens",
    ),
)

DASHBOARD = Dashboard(
    name="cost",
    title="Tideserve / Cost",
    text="GPU time and money by model, for tokens, and for idling. Only what replicas hold; a pod or node "
    "that waits for one costs besides.",
    rows=(Row("", (*_STATS, *_PERIODS)), Row("Course", _COURSE)),
    annotations=(DECISIONS,),
    prices=(PRICE,),
    shown="now-24h",
    refresh="1m",  # sums over 30 days are no work for every ten seconds
)
