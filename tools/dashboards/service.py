"""The service as its users meet it: targets, latency, traffic, what was refused."""

from __future__ import annotations

from tools.dashboards.colours import ARRIVALS, OUTCOMES, READY
from tools.dashboards.dashboard import Dashboard, Row
from tools.dashboards.decisions import DECISIONS
from tools.dashboards.latency import (
    HUNDRED,
    HUNDRED_TARGET,
    ITL,
    ITL_TARGET,
    LATENCY,
    PROMISE,
    TTFT_TARGET,
    USER_TTFT,
    held_requests,
)
from tools.dashboards.panels import PER_MINUTE, TOKENS_PER_SECOND, Panel, Query, coloured
from tools.dashboards.promql import (
    SHOWN,
    STEP,
    counted,
    or_zero,
    ours,
    per_minute,
    quantile,
    rate,
    ratio,
    share_within,
    total,
)
from tools.dashboards.targets import (
    HUNDRED_TOKENS_S,
    ITL_S,
    NEUTRAL,
    PROMISED_SHARE,
    SUCCESS_SHARE,
    TTFT_S,
    better_above,
    line_at,
    worse_above,
)

_RESPONSES = "llm_responses_total"
_SHARE = better_above(PROMISED_SHARE, PROMISED_SHARE - 0.05)


def _attained(title: str, histogram: str, bound_s: float, text: str) -> Panel:
    return Panel(
        title,
        text,
        "percentunit",
        (Query(share_within(histogram, bound_s, SHOWN), title),),
        kind="stat",
        width=3,
        height=4,
        over_range=True,
        steps=_SHARE,
        decimals=1,
    )


def _now(title: str, expr: str, unit: str, text: str, warn_above: float | None = None) -> Panel:
    steps = worse_above(warn_above) if warn_above is not None else NEUTRAL
    return Panel(title, text, unit, (Query(expr, title),), kind="stat", width=3, height=4, steps=steps)


_ANSWERED = 'outcome=~"ok|rejected|error"'
_STATS = (
    _attained(
        f"TTFT within {TTFT_TARGET}",
        USER_TTFT,
        TTFT_S,
        "Share of the requests in the time shown whose first token came in time after they reached the "
        f"ingress, cold starts included. Promised: {PROMISE}. If it is less, the decomposition below says "
        "whether a cold wait, the queue or the prefill took the time.",
    ),
    _attained(
        f"ITL within {ITL_TARGET}",
        ITL,
        ITL_S,
        f"Share of the gaps between tokens in the time shown that were short enough. Promised: {PROMISE}. "
        "If it is less, batches are too large or prefills interrupt too often: see the engine dashboard.",
    ),
    _attained(
        f"100 tokens in {HUNDRED_TARGET}",
        HUNDRED,
        HUNDRED_TOKENS_S,
        "Share of the answers in the time shown that reached their hundredth token in time after they "
        "arrived at the engine. Shorter answers do not count.",
    ),
    Panel(
        "Succeeded",
        "Requests answered in full, of those that were answered, refused (429) or failed (5xx, or a stream "
        f"that broke) in the time shown. Below {SUCCESS_SHARE:.0%}: see refusals and engine errors below. "
        "Wrong requests (other 4xx) and clients that left are not counted.",
        "percentunit",
        (
            Query(
                ratio(
                    counted(ours(_RESPONSES, 'outcome="ok"'), SHOWN),
                    counted(ours(_RESPONSES, _ANSWERED), SHOWN),
                ),
                "Succeeded",
            ),
        ),
        kind="stat",
        width=3,
        height=4,
        over_range=True,
        steps=better_above(0.999, SUCCESS_SHARE),
        decimals=2,
    ),
    _now(
        "Requests",
        or_zero(rate(ours("llm_arrivals_total"))),
        "reqps",
        "Generations and embeddings that arrive per second, at all ingress replicas.",
    ),
    _now(
        "Tokens generated",
        or_zero(rate(ours("llm_completion_tokens_total"))),
        TOKENS_PER_SECOND,
        "Tokens generated per second, by all replicas.",
    ),
    _now(
        "In engines",
        or_zero(f"{total(ours('llm_running_requests'))} + {total(ours('llm_waiting_requests'))}"),
        "short",
        "Requests that engines run or have in their queues at this moment.",
    ),
    _now(
        "Held",
        or_zero(total(ours("llm_held_requests"))),
        "short",
        "Requests that wait at the ingress for a replica. Normal for the length of a cold start; if they "
        "stay, look at the autoscaling dashboard for replicas that are pending.",
        warn_above=1,
    ),
)

_TRAFFIC = (
    Panel(
        "Requests by model",
        "Generations and embeddings that arrive per second, whatever becomes of them.",
        "reqps",
        (Query(rate(ours("llm_arrivals_total"), ("model",)), "{{model}}"),),
        stacked=True,
    ),
    Panel(
        "Tokens",
        "Tokens generated and prompt tokens processed per second. What the prefix cache had is among the "
        "latter.",
        TOKENS_PER_SECOND,
        (
            Query(or_zero(rate(ours("llm_completion_tokens_total"))), "generated"),
            Query(or_zero(rate(ours("llm_prompt_tokens_total"))), "prompt"),
        ),
        lines=coloured({"generated": READY, "prompt": ARRIVALS}),
    ),
    held_requests("Longer than a cold start: replicas are pending, or fail to start."),
    Panel(
        "Outcomes",
        "How requests ended, per second: answered in full, refused (429), failed (5xx, or a stream that "
        "broke), wrong in themselves (other 4xx), left by their clients. Wrong requests alone are the "
        "clients' matter.",
        "reqps",
        tuple(
            Query(or_zero(rate(ours(_RESPONSES, f'outcome="{outcome}"'))), outcome) for outcome in OUTCOMES
        ),
        stacked=True,
        lines=coloured(OUTCOMES),
    ),
    Panel(
        "Refusals",
        "Requests per minute refused with 429 or 503 for want of room, by error code. queue_full: more "
        "replicas are wanted than there may be, or a burst went beyond max_held_requests; cold_wait_timeout: "
        "replicas are pending or fail to start; model_unavailable: they fail.",
        PER_MINUTE,
        (Query(per_minute(ours("llm_rejected_total"), ("reason",)), "{{reason}}"),),
        empty="none refused",
    ),
    Panel(
        "Engine errors",
        "Operations per minute that failed in an engine replica, by error code. The logs of the engine "
        "pods have the reason.",
        PER_MINUTE,
        (Query(per_minute(ours("llm_errors_total"), ("type",)), "{{type}}"),),
        empty="no errors",
    ),
)

_BY_MODEL = (
    Panel(
        "TTFT P95 by model",
        f"As users saw it, cold starts included. The dashed line is the target, {TTFT_TARGET}.",
        "s",
        (Query(quantile(0.95, USER_TTFT, STEP, ("model",)), "{{model}}"),),
        steps=line_at(TTFT_S),
        log=True,
    ),
    Panel(
        "ITL P95 by model",
        f"The dashed line is the target, {ITL_TARGET}.",
        "s",
        (Query(quantile(0.95, ITL, STEP, ("model",)), "{{model}}"),),
        steps=line_at(ITL_S),
    ),
    Panel(
        "Failed by model",
        "Share of the requests answered, refused or failed that were refused or failed. The dashed line is "
        f"{1 - SUCCESS_SHARE:.0%}.",
        "percentunit",
        (
            Query(
                ratio(
                    counted(ours(_RESPONSES, 'outcome=~"rejected|error"'), STEP, ("model",)),
                    counted(ours(_RESPONSES, _ANSWERED), STEP, ("model",)),
                ),
                "{{model}}",
            ),
        ),
        steps=line_at(round(1 - SUCCESS_SHARE, 4)),
    ),
)

DASHBOARD = Dashboard(
    name="service",
    title="Tideserve / Service",
    text="What users get: latency against its targets, traffic, what was refused or failed.",
    rows=(
        Row("", _STATS),
        Row("Latency", LATENCY),
        Row("Traffic", _TRAFFIC),
        Row("By model", _BY_MODEL),
    ),
    annotations=(DECISIONS,),
)
