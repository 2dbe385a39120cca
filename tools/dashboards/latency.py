"""Latency as users meet it: the panels of the service dashboard that show its course and its parts."""

from __future__ import annotations

from tools.dashboards.colours import HELD, PARTS, PERCENTILES, PLAIN, READY, STATES
from tools.dashboards.panels import Line, Panel, Query, coloured
from tools.dashboards.promql import STEP, mean, or_zero, ours, quantile, share_within, total
from tools.dashboards.targets import HUNDRED_TOKENS_S, ITL_S, PROMISED_SHARE, TTFT_S, line_at

USER_TTFT, ITL, E2E = "llm_user_ttft_seconds", "llm_inter_token_seconds", "llm_e2e_seconds"
COLD, QUEUE, PREFILL = "llm_cold_wait_seconds", "llm_queue_wait_seconds", "llm_prefill_seconds"
HUNDRED = "llm_hundred_tokens_seconds"
TTFT_TARGET = f"{1000 * TTFT_S:g} ms"
ITL_TARGET = f"{1000 * ITL_S:g} ms"
HUNDRED_TARGET = f"{HUNDRED_TOKENS_S:g} s"
PROMISE = f"{PROMISED_SHARE:.0%}"


def _percentiles(histogram: str, matchers: str = "") -> tuple[Query, ...]:
    return tuple(
        Query(quantile(int(name[1:]) / 100, histogram, STEP, matchers=matchers), name) for name in PERCENTILES
    )


def held_requests(more: str = "") -> Panel:
    """Requests without a replica, on two axes; `more` is said of them."""
    text = (
        f"Requests held for want of a replica, and (right axis) how long the first of them has been. {more}"
    )
    return Panel(
        "Held requests",
        text.strip(),
        "short",
        (
            Query(or_zero(total(ours("llm_held_requests"))), "held"),
            Query(or_zero(total(ours("llm_oldest_held_seconds"), how="max")), "oldest"),
        ),
        lines={"held": Line(HELD), "oldest": Line(STATES["wanted"], unit="s")},
    )


LATENCY = (
    Panel(
        "Within target",
        f"Share within the target, of TTFT ({TTFT_TARGET}), ITL ({ITL_TARGET}) and 100 tokens "
        f"({HUNDRED_TARGET}). The dashed line is the promise, {PROMISE}. A dip that follows a decision "
        "upwards is a cold start or a rise faster than replicas start.",
        "percentunit",
        (
            Query(share_within(USER_TTFT, TTFT_S, STEP), "TTFT"),
            Query(share_within(ITL, ITL_S, STEP), "ITL"),
            Query(share_within(HUNDRED, HUNDRED_TOKENS_S, STEP), "100 tokens"),
        ),
        width=12,
        steps=line_at(PROMISED_SHARE),
        lines=coloured({"TTFT": READY, "ITL": STATES["wanted"], "100 tokens": STATES["draining"]}),
        maximum=1,
    ),
    Panel(
        "TTFT, warm",
        "Time from the arrival at the ingress to the first token, of requests that met a replica (held for "
        "0.5 s at most). An answer that is not streamed counts when it is whole. The dashed line is the "
        f"target, {TTFT_TARGET}.",
        "s",
        _percentiles(USER_TTFT, 'cold="false"'),
        width=12,
        steps=line_at(TTFT_S),
        lines=coloured(PERCENTILES),
    ),
    Panel(
        "TTFT, cold",
        "The same of requests that were held over 0.5 s for want of a replica. About a cold start is "
        "normal at zero; if users should not wait so long, raise min_replicas or set a schedule. What took "
        "over 120 s is shown as 120 s.",
        "s",
        _percentiles(USER_TTFT, 'cold="true"'),
        lines=coloured(PERCENTILES),
        points=True,
        log=True,
        empty="nobody met a cold start",
    ),
    Panel(
        "Where TTFT goes",
        "Mean seconds of a request in an engine's queue and in prefill. The dashed line is the TTFT of "
        "warm requests; what is above the parts is the way there and reading the prompt. On the right axis "
        "the cold wait, as a share of all requests: 1 s is one of a hundred that waited 100 s. Much queue: "
        "more replicas or headroom. Much prefill: long prompts. From buckets, so good to about a tenth.",
        "s",
        (
            Query(mean(PREFILL), "prefill"),
            Query(mean(QUEUE), "queue wait"),
            Query(mean(COLD, over=USER_TTFT), "cold wait"),
            Query(mean(USER_TTFT, 'cold="false"'), "warm TTFT"),
        ),
        stacked=True,
        lines={
            **coloured(PARTS),
            "cold wait": Line(PARTS["cold wait"], unit="s"),
            "warm TTFT": Line(PLAIN, dashed=True),
        },
    ),
    Panel(
        "Parts of TTFT, P95",
        "The slowest twentieth of each part by itself. They do not add up: it is not the same requests. "
        "The dashed line is the target of the whole.",
        "s",
        tuple(
            Query(quantile(0.95, name, STEP), part)
            for name, part in ((PREFILL, "prefill"), (QUEUE, "queue wait"), (COLD, "cold wait"))
        ),
        steps=line_at(TTFT_S),
        lines=coloured(PARTS),
        log=True,
    ),
    Panel(
        "ITL",
        f"Time between tokens. The dashed line is the target, {ITL_TARGET}. P50 is the step of the batch "
        "that runs, P95 and P99 are the steps that also prefill.",
        "s",
        _percentiles(ITL),
        steps=line_at(ITL_S),
        lines=coloured(PERCENTILES),
    ),
    Panel(
        "100 tokens",
        "Time from the arrival at the engine to the hundredth token, of answers that are as long. The dashed "
        f"line is the target, {HUNDRED_TARGET}.",
        "s",
        _percentiles(HUNDRED),
        steps=line_at(HUNDRED_TOKENS_S),
        lines=coloured(PERCENTILES),
    ),
    Panel(
        "Whole answers",
        "Time from the arrival at the engine to the last token. It follows the length of answers more than "
        "anything else.",
        "s",
        _percentiles(E2E),
        lines=coloured(PERCENTILES),
    ),
)
