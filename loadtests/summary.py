"""Figures of a run: counts, latencies, rates, and both over time. Nothing is dropped from percentiles."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Self

import numpy as np
import numpy.typing as npt

from loadtests.columns import COLD_S, Columns, Floats, Percentiles, applicable
from loadtests.conversations import Conversations, PromptCache, conversations, prompt_cache
from loadtests.fleet import Fleet, fleets
from loadtests.record import ERRORS, OUTCOMES, Outcome, Record, Run
from loadtests.scenario import Bounds, Scenario

WIDTHS_S = (1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0)
MOST_WINDOWS = 120
SLOWEST = 5
_NUMBER = re.compile(r"\b(?=[0-9a-f]*[0-9])[0-9a-f]+(?:\.[0-9]+)?\b")


@dataclass(frozen=True, slots=True)
class Rates:
    """Requests and tokens per second, and the share of good requests."""

    arrivals_s: float
    """How long requests came by the scenario, or until the run ended early."""
    span_s: float
    """From the run's start to the end of the last request, and at least `arrivals_s`: with a shorter time, a
    server would seem to answer more than was offered."""
    offered_rps: float
    """Requests by intended time, over `arrivals_s`."""
    answered_rps: float
    """Whole answers, over `span_s`."""
    output_tokens: int
    """Tokens of all requests, including answers that broke off."""
    output_tokens_per_s: float
    """Over `span_s`."""
    goodput: float | None
    """Share of all requests, 0 to 1, without an error and within the bounds of `slos.ttft_ms`, `warm_ttft_ms`
    (warm requests) and `itl_ms` (the request's mean time per token). The bound is that of P95, else P99, else
    P50. None where there is no bound, or no request.

    Judging both targets request by request is after Zhong et al., "DistServe" (OSDI 2024); they call this
    share SLO attainment, and the highest rate that keeps it goodput.
    """
    goodput_rps: float | None
    """Good requests, over `span_s`."""
    tokens_per_piece: float | None
    """Over 1 where tokens were sent together: ITL has no gaps within a piece. None if not counted."""


def rates(run: Run, scenario: Scenario, columns: Columns) -> Rates:
    """The rates of `run`."""
    if scenario.closed is not None:
        planned_s = scenario.closed.for_s
    else:
        planned_s = scenario.repeat * sum(
            part.for_s * part.time if part.shape == "trace" else part.for_s for part in scenario.arrivals
        )
    arrivals_s = min(planned_s, run.duration_s) if run.interrupted else planned_s
    count = len(columns.at_s)
    span_s = max([arrivals_s, *columns.ended_s.tolist()])
    tokens = int(columns.tokens.sum())
    good = _count_good(scenario, columns) if count else None
    counted = [record for record in run.records if record.pieces_s and record.output_tokens is not None]
    pieces = sum(len(record.pieces_s) for record in counted)

    def over(amount: float, seconds: float) -> float:
        return amount / seconds if seconds > 0 else 0.0

    return Rates(
        arrivals_s=arrivals_s,
        span_s=span_s,
        offered_rps=over(count, arrivals_s),
        answered_rps=over(sum(record.outcome == "answered" for record in run.records), span_s),
        output_tokens=tokens,
        output_tokens_per_s=over(tokens, span_s),
        goodput=None if good is None else good / count,
        goodput_rps=None if good is None else over(good, span_s),
        tokens_per_piece=sum(record.output_tokens or 0 for record in counted) / pieces if pieces else None,
    )


def _count_good(scenario: Scenario, columns: Columns) -> int | None:
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
    """The bound on one request."""
    known = (bounds.p95, bounds.p99, bounds.p50) if bounds else ()
    return next((bound for bound in known if bound is not None), None)


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of a run. Times are seconds since the run's start."""

    start_s: float
    end_s: float
    """The last window may be half as long as the others, or 1.5 times: one request in a remainder of a
    millisecond would be a thousand per second."""
    arrivals: int
    """Requests whose intended time lies in it."""
    rate_rps: float
    """Arrivals per second."""
    ttft_s: Percentiles | None
    """TTFT of these requests; infinity where it never came. None if there are no requests."""
    itl_s: Percentiles | None
    """Gaps before the pieces that arrived in it; None if there are none."""
    errors: int
    """Requests of these that were rejected, failed, broken or abandoned, at any time."""
    open_streams: float
    """Requests sent and not ended, on average over the window."""


def windows(columns: Columns, duration_s: float) -> tuple[Window, ...]:
    """The whole run without gaps, up to the end of the last request; empty where nothing took time."""
    ends = [duration_s, *columns.ended_s.tolist(), *columns.at_s.tolist()]
    end = max(ends)
    if end <= 0:
        return ()
    width = width_s(end)
    count = max(1, math.floor(end / width + 0.5))
    edges = np.append(np.arange(count) * width, end)
    arrived = _split(columns.at_s, width, count)
    gaps = _split(columns.gap_at_s, width, count)
    streams = _open(columns, edges)
    out = []
    for at in range(count):
        start, stop = float(edges[at]), float(edges[at + 1])
        requests = arrived[at]
        out.append(
            Window(
                start_s=start,
                end_s=stop,
                arrivals=len(requests),
                rate_rps=len(requests) / (stop - start),
                ttft_s=Percentiles.of(columns.ttft_s[requests]),
                itl_s=Percentiles.of(columns.gap_s[gaps[at]]),
                errors=int(np.count_nonzero(columns.error[requests])),
                open_streams=float(streams[at]),
            )
        )
    return tuple(out)


def width_s(duration_s: float) -> float:
    """The narrowest round width that makes at most `MOST_WINDOWS`; beyond ten hours, a multiple of 300 s."""
    for width in WIDTHS_S:
        if duration_s <= width * MOST_WINDOWS:
            return width
    return WIDTHS_S[-1] * float(np.ceil(duration_s / (WIDTHS_S[-1] * MOST_WINDOWS)))


def _split(times: Floats, width: float, count: int) -> list[npt.NDArray[np.int64]]:
    """The places in `times`, by window. Times before 0 are in the first, times beyond the end in the last."""
    window = np.clip((times // width).astype(np.int64), 0, count - 1)
    order = np.argsort(window, kind="stable")
    return np.split(order, np.searchsorted(window[order], np.arange(1, count)))


def _open(columns: Columns, edges: Floats) -> Floats:
    """Requests open on average between the edges."""
    spent = _since(columns.sent_s, edges) - _since(columns.ended_s, edges)
    return np.diff(spent) / np.diff(edges)


def _since(times: Floats, edges: Floats) -> Floats:
    """At each edge, the seconds gone by since each of `times` before it, added up."""
    ordered = np.sort(times)
    before = np.searchsorted(ordered, edges, side="right")
    total = np.concatenate(([0.0], np.cumsum(ordered)))
    since: Floats = before * edges - total[before]
    return since


@dataclass(frozen=True, slots=True)
class Trouble:
    """Requests that ended in the same way."""

    outcome: Outcome
    status: int
    """The last HTTP status; 0 without one."""
    words: str
    """The error of the first of them."""
    count: int
    first_index: int
    first_s: float
    """When the first of them ended."""


def troubles(records: Sequence[Record]) -> tuple[Trouble, ...]:
    """`records` by outcome, status and words, the most frequent first.

    Words count as equal if only numbers and hexadecimal ids differ: 30 messages with the ids of 30 requests
    are one kind of trouble.
    """
    groups: dict[tuple[Outcome, int, str], list[Record]] = {}
    for record in records:
        key = (record.outcome, record.status, _NUMBER.sub("#", record.error))
        groups.setdefault(key, []).append(record)
    kinds = []
    for (outcome, status, _), group in groups.items():
        first = min(group, key=lambda record: (record.ended_s, record.index))
        kinds.append(Trouble(outcome, status, first.error, len(group), first.index, first.ended_s))
    return tuple(sorted(kinds, key=lambda kind: (-kind.count, kind.first_s, kind.first_index)))


@dataclass(frozen=True, slots=True)
class Counts:
    """Requests by outcome. Each has exactly one (`record.Outcome`)."""

    requests: int
    answered: int
    left: int
    abandoned: int
    rejected: int
    failed: int
    broken: int
    retried: int
    """Sent more than once, with any outcome."""
    cold: int
    """Queued for a cold start for over 0.5 s, with any outcome."""
    left_waiting: int
    """Clients that left before the first piece. They count in TTFT with the time they had waited, so with
    many of them its percentiles are lower bounds."""

    @property
    def errors(self) -> int:
        """Abandoned, rejected, failed and broken."""
        return self.abandoned + self.rejected + self.failed + self.broken

    @property
    def error_rate(self) -> float:
        """Share of all requests, 0 to 1; 0 without any."""
        return self.errors / self.requests if self.requests else 0.0

    @classmethod
    def of(cls, records: Sequence[Record]) -> Self:
        """The counts of `records`."""
        by: Counter[Outcome] = Counter(record.outcome for record in records)
        return cls(
            **{str(outcome): by[outcome] for outcome in OUTCOMES},
            requests=len(records),
            retried=sum(record.attempts > 1 for record in records),
            cold=sum(record.cold_wait_s > COLD_S for record in records),
            left_waiting=sum(record.outcome == "left" and not record.pieces_s for record in records),
        )


@dataclass(frozen=True, slots=True)
class Latencies:
    """Percentiles in seconds, from intended times on; None where nothing applies. See `columns.Columns`."""

    ttft: Percentiles | None
    ttft_warm: Percentiles | None
    """For requests that were queued for a cold start for at most 0.5 s."""
    ttft_cold: Percentiles | None
    """For the others, which are cold."""
    cold_wait: Percentiles | None
    """How long cold requests were queued for a cold start."""
    itl: Percentiles | None
    """Gaps between successive pieces, of all answers in one pool, with an endless one for each broken
    answer."""
    tpot: Percentiles | None
    """Mean time per output token after the first, one figure per request."""
    e2e: Percentiles | None
    """To the end of the answer."""
    hundred_tokens: Percentiles | None
    """To the hundredth token, of requests planned to have as many."""
    lag: Percentiles | None
    """How late the client began a request. It is part of every other latency."""

    def named(self) -> Iterator[tuple[str, Percentiles]]:
        """The latencies that apply, with their names in reports; warm TTFT only where there is a cold one."""
        for name, found in (
            ("TTFT", self.ttft),
            ("TTFT, warm", self.ttft_warm if self.ttft_cold else None),
            (f"TTFT, cold start over {COLD_S:g} s", self.ttft_cold),
            ("cold wait", self.cold_wait),
            ("ITL", self.itl),
            ("mean time per token", self.tpot),
            ("hundred tokens", self.hundred_tokens),
            ("end to end", self.e2e),
            ("client lag", self.lag),
        ):
            if found is not None:
                yield name, found

    @classmethod
    def of(cls, columns: Columns) -> Self:
        """The latencies of `columns`."""
        return cls(
            ttft=Percentiles.of(columns.ttft_s),
            ttft_warm=Percentiles.of(columns.ttft_s[~columns.cold]),
            ttft_cold=Percentiles.of(columns.ttft_s[columns.cold]),
            cold_wait=Percentiles.of(applicable(columns.cold_wait_s)),
            itl=Percentiles.of(columns.gap_s),
            tpot=Percentiles.of(applicable(columns.tpot_s)),
            e2e=Percentiles.of(applicable(columns.e2e_s)),
            hundred_tokens=Percentiles.of(applicable(columns.hundred_s)),
            lag=Percentiles.of(columns.sent_s - columns.at_s),
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """A run in figures."""

    counts: Counts
    by_kind: Mapping[str, Counts]
    by_model: Mapping[str, Counts]
    latencies: Latencies
    rates: Rates
    prompt_cache: PromptCache | None
    """None if the server counted no prompt."""
    conversations: Conversations | None
    """None if the scenario has none."""
    windows: tuple[Window, ...]
    fleets: tuple[Fleet, ...]
    """By model, where the server reported replicas."""
    troubles: tuple[Trouble, ...]
    """Errors by kind, the most frequent first."""
    slowest: tuple[Record, ...]
    """The requests with the longest TTFT, the longest first; without those that had no first piece."""

    @property
    def gpu_seconds(self) -> float | None:
        """GPU-seconds of all models; None where no replica counts were reported."""
        return sum(fleet.gpu_seconds.total for fleet in self.fleets) if self.fleets else None

    @property
    def dollars(self) -> float | None:
        """Cost of all models; None where no replicas were reported, 0 where the scenario has no price."""
        return sum(fleet.dollars for fleet in self.fleets) if self.fleets else None


def summarize(run: Run) -> Summary:
    """The figures of `run`.

    Raises:
        ValueError: `run.scenario` is not a scenario.
    """
    scenario = Scenario.model_validate(run.scenario)
    columns = Columns.of(run.records)
    return Summary(
        counts=Counts.of(run.records),
        by_kind=_by(run.records, lambda record: record.kind),
        by_model=_by(run.records, lambda record: record.model),
        latencies=Latencies.of(columns),
        rates=rates(run, scenario, columns),
        prompt_cache=prompt_cache(run.records),
        conversations=conversations(run.records),
        windows=windows(columns, run.duration_s),
        fleets=fleets(run, scenario),
        troubles=troubles([record for record in run.records if record.outcome in ERRORS]),
        slowest=_slowest(run.records, columns),
    )


def _by(records: Sequence[Record], name: Callable[[Record], str]) -> dict[str, Counts]:
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(name(record), []).append(record)
    return {key: Counts.of(groups[key]) for key in sorted(groups)}


def _slowest(records: Sequence[Record], columns: Columns) -> tuple[Record, ...]:
    order = np.argsort(-columns.ttft_s, kind="stable").tolist()
    return tuple(islice((records[at] for at in order if records[at].pieces_s), SLOWEST))
