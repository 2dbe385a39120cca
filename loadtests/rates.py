"""How much a run asked for and got a second, and how much of it was good."""

from dataclasses import dataclass

import numpy as np

from loadtests.columns import Columns
from loadtests.record import Record, Run
from loadtests.scenario import Bounds, Scenario


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of a run. Seconds, and requests or tokens a second."""

    arrivals_s: float
    """How long requests came by the scenario, or until the run ended early."""
    span_s: float
    """From the run's start to the end of the last request, and at least `arrivals_s`: what comes out is over
    no less time than what came in, so that a server never seems to answer more than was offered."""
    offered_rps: float
    """Requests by intended time, over `arrivals_s`."""
    answered_rps: float
    """Whole answers, over `span_s`."""
    output_tokens: int
    """Tokens of all requests, including answers that broke off."""
    output_tokens_per_s: float
    """Over `span_s`."""
    goodput: float | None
    """Share of all requests, 0 to 1, that were good: no error, TTFT at most as in `slos.ttft_ms`, of a warm
    request as in `slos.warm_ttft_ms`, and own mean time per output token at most as in `slos.itl_ms`. Of each
    the bound of P95 counts, else that of P99, else that of P50. What has no bound is not looked at; None
    where nothing has one, or without requests.

    Reading both targets request by request is after Zhong et al., "DistServe: Disaggregating Prefill and
    Decoding for Goodput-optimized Large Language Model Serving" (OSDI 2024); they call this share SLO
    attainment, and the highest rate that keeps it goodput.
    """
    goodput_rps: float | None
    """Good requests, over `span_s`."""
    tokens_per_piece: float | None
    """Over 1 where tokens were sent together: ITL sees no gaps within. None if not counted."""


def rates(run: Run, scenario: Scenario, columns: Columns) -> Rates:
    """Those of `run`."""
    planned = _planned_s(scenario)
    arrivals_s = min(planned, run.duration_s) if run.interrupted else planned
    count = len(columns.at_s)
    span_s = max([arrivals_s, *columns.ended_s.tolist()])
    tokens = int(columns.tokens.sum())
    good = _good(scenario, columns)
    return Rates(
        arrivals_s=arrivals_s,
        span_s=span_s,
        offered_rps=_over(count, arrivals_s),
        answered_rps=_over(sum(record.outcome == "answered" for record in run.records), span_s),
        output_tokens=tokens,
        output_tokens_per_s=_over(tokens, span_s),
        goodput=good / count if good is not None and count else None,
        goodput_rps=_over(good, span_s) if good is not None and count else None,
        tokens_per_piece=_tokens_per_piece(run.records),
    )


def _planned_s(scenario: Scenario) -> float:
    if scenario.closed is not None:
        return scenario.closed.for_s
    once = sum(part.for_s * part.time if part.shape == "trace" else part.for_s for part in scenario.arrivals)
    return once * scenario.repeat


def _over(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0


def _good(scenario: Scenario, columns: Columns) -> int | None:
    slos = scenario.slos
    ttft_ms, warm_ms, itl_ms = (_target(each) for each in (slos.ttft_ms, slos.warm_ttft_ms, slos.itl_ms))
    if ttft_ms is warm_ms is itl_ms is None:
        return None
    good = ~columns.error
    if ttft_ms is not None:
        good &= columns.ttft_s <= ttft_ms / 1000
    if warm_ms is not None:
        good &= columns.cold | (columns.ttft_s <= warm_ms / 1000)
    if itl_ms is not None:
        good &= np.isnan(columns.tpot_s) | (columns.tpot_s <= itl_ms / 1000)
    return int(np.count_nonzero(good))


def _target(bounds: Bounds | None) -> float | None:
    """What one request has to keep."""
    known = (bounds.p95, bounds.p99, bounds.p50) if bounds else ()
    return next((bound for bound in known if bound is not None), None)


def _tokens_per_piece(records: tuple[Record, ...]) -> float | None:
    counted = [record for record in records if record.pieces_s and record.output_tokens is not None]
    if not counted:
        return None
    return sum(r.output_tokens or 0 for r in counted) / sum(len(r.pieces_s) for r in counted)
