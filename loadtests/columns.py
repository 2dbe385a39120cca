"""The requests of a run as arrays of latencies, and their percentiles. A missing token has infinite
latency."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Self

import numpy as np
import numpy.typing as npt

from loadtests.record import ERRORS, Record

NEVER = math.inf
"""The latency of a token that never came. Reports show `never`."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of latencies, in seconds; `NEVER` where they reach requests that never got their token."""

    count: int
    """Latencies, infinite ones included."""
    never: int
    """Infinite ones."""
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Floats) -> Self | None:
        """The percentiles of `values`, in any order and none of them NaN; None if there are none."""
        if not len(values):
            return None
        ordered = np.sort(values)
        p50, p90, p95, p99 = (percentile(ordered, at) for at in (0.50, 0.90, 0.95, 0.99))
        return cls(
            count=len(ordered),
            never=int(np.count_nonzero(np.isinf(ordered))),
            mean=float(ordered.mean()),
            p50=p50,
            p90=p90,
            p95=p95,
            p99=p99,
            max=float(ordered[-1]),
        )


def percentile(ordered: Floats | Sequence[float], at: float) -> float:
    """The value below which a share `at` (0 to 1) of `ordered` lies: rising, at least one, none NaN.

    Definition 7 of Hyndman and Fan, "Sample Quantiles in Statistical Packages" (1996), as in numpy. Between a
    finite value and infinity it is infinity, where numpy would give NaN.
    """
    place = at * (len(ordered) - 1)
    low = math.floor(place)
    below, above = float(ordered[low]), float(ordered[min(low + 1, len(ordered) - 1)])
    share = place - low
    if share == 0.0 or below == above:
        return below
    return below + share * (above - below)


COLD_S = 0.5
"""A request that was queued for a cold start for longer is cold: the server's own limit (docs/api.md)."""
HUNDRED = 100
NOT_APPLICABLE = np.nan

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """One element per request, in the order of the records; seconds. NaN: does not apply.

    A latency is infinite for every request that ended in an error before it. A client that left as the
    scenario asked is no error. If it left before its first piece, TTFT is the time it had waited, a lower
    bound (`Counts.left_waiting` counts these). It has no end-to-end latency.
    """

    at_s: Floats
    sent_s: Floats
    ended_s: Floats
    ttft_s: Floats
    """From the intended time to the first piece; of an answer without any, to its end."""
    cold: Flags
    cold_wait_s: Floats
    """For cold requests only; infinity where an error came before the first piece."""
    tpot_s: Floats
    """Mean time per output token after the first: (last piece - first piece) / (tokens - 1)."""
    e2e_s: Floats
    hundred_s: Floats
    """From the intended time to the hundredth token, of requests planned to have as many.

    Tokens are spread evenly over the pieces of an answer: of 128 tokens in 64 pieces, piece 50 carries the
    hundredth. A shorter answer, or one that a client left earlier, has none.
    """
    error: Flags
    tokens: Floats
    """As the server counted them, else the pieces that came."""
    prompt_tokens: Floats
    """Where the server reported how many were cached; else 0."""
    cached_tokens: Floats
    """Of those, the tokens found in a prefix cache."""
    piece_at_s: Floats
    """One element per piece: when it arrived."""
    piece_tokens: Floats
    """Its tokens, evenly spread."""
    gap_s: Floats
    """One element per gap between two pieces of one answer: the ITL. A stream that ended in an error has one
    more, which is infinite: else a stall that ends in a timeout would not show."""
    gap_at_s: Floats
    """When the gap ended; for an infinite one, when the stream ended."""

    @classmethod
    def of(cls, records: Sequence[Record]) -> Self:
        """The columns of `records`, which may be in any order."""
        at = _column(record.at_s for record in records)
        ended = _column(record.ended_s for record in records)
        count = np.array([len(record.pieces_s) for record in records], dtype=np.int64)
        tokens = _column(record.output_tokens or len(record.pieces_s) for record in records)
        planned = _column(record.planned_output_tokens for record in records)
        waited = _column(record.cold_wait_s for record in records)
        error = np.array([record.outcome in ERRORS for record in records], dtype=np.bool_)
        left = np.array([record.outcome == "left" for record in records], dtype=np.bool_)

        pieces = np.fromiter(chain.from_iterable(record.pieces_s for record in records), np.float64)
        owner = np.repeat(np.arange(len(records)), count)
        begins = np.cumsum(count) - count
        came = count > 0
        first, last = _take(pieces, begins, came), _take(pieces, begins + count - 1, came)
        within = owner[1:] == owner[:-1]

        cold = waited > COLD_S
        timed = came & (tokens > 1)
        stopped = came & error
        return cls(
            at_s=at,
            sent_s=_column(record.sent_s for record in records),
            ended_s=ended,
            ttft_s=np.where(came, first, np.where(error, NEVER, ended)) - at,
            cold=cold,
            cold_wait_s=np.where(cold, np.where(error & ~came, NEVER, waited), NOT_APPLICABLE),
            tpot_s=np.where(
                error & (planned != 1),
                NEVER,
                np.where(timed, last - first, NOT_APPLICABLE) / np.maximum(tokens - 1, 1),
            ),
            e2e_s=np.where(left, NOT_APPLICABLE, np.where(error, NEVER, ended - at)),
            hundred_s=_hundred(pieces, begins, count, tokens, planned, error) - at,
            error=error,
            tokens=tokens,
            prompt_tokens=_column(
                (record.prompt_tokens or 0) * (record.cached_tokens is not None) for record in records
            ),
            cached_tokens=_column(record.cached_tokens or 0 for record in records),
            piece_at_s=pieces,
            piece_tokens=np.repeat(tokens / np.maximum(count, 1), count),
            gap_s=np.append((pieces[1:] - pieces[:-1])[within], np.full(stopped.sum(), NEVER)),
            gap_at_s=np.append(pieces[1:][within], ended[stopped]),
        )


def applicable(column: Floats) -> Floats:
    """The elements that apply."""
    kept: Floats = column[~np.isnan(column)]
    return kept


def _column(values: Iterable[float]) -> Floats:
    column: Floats = np.fromiter(values, np.float64)
    return column


def _take(pieces: Floats, places: npt.NDArray[np.int64], there: Flags) -> Floats:
    out = np.full(len(places), NOT_APPLICABLE)
    out[there] = pieces[places[there]]
    return out


def _hundred(
    pieces: Floats,
    begins: npt.NDArray[np.int64],
    count: npt.NDArray[np.int64],
    tokens: Floats,
    planned: Floats,
    error: Flags,
) -> Floats:
    """When the hundredth token came, or `NEVER`, or that it does not apply."""
    has = (tokens >= HUNDRED) & (count > 0)
    piece = np.ceil(HUNDRED * count / np.maximum(tokens, 1)).astype(np.int64)
    out = _take(pieces, begins + piece - 1, has)
    out[~has & error] = NEVER
    out[planned < HUNDRED] = NOT_APPLICABLE
    return out
