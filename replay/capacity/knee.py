"""The knee of a replica, above which it misses its targets: judging a rate, and the next to try. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from loadtests.columns import NEVER, percentile
from loadtests.record import Record, Timekeeping
from serve_app.policy.capacity_model import Mix, StepTime, feasibility
from serve_app.settings.knobs import Knobs

FIRST_SHARE = 0.5
"""The first rate to try, as a share of the formula's."""
_GROWTH = 1.25
_RESOLUTION = 1.05
"""Between the highest rate held and the lowest missed, in the end."""
_MOST_HALVINGS = 5
_MOST_GROWTHS = 14
"""1.25 ** 14 is 23: a formula that far off is told by the figures, not searched on."""

# A quarter of a rate's time passes before anything counts. The batch is that of the rate once the first
# requests have had time to end: 128 tokens at 25 ms are 3.2 s, a quarter of the usual 20 s is 5.
_TRANSIENT = 0.25
_FEWEST = 100
"""Requests that count: 5 of them are above P95."""
_LONGEST = 15.0
"""Times the seconds asked for, at most, to have so many."""

# The client's own lateness is in every latency it measures. Below a tenth of the target, or the 10 ms that
# load tests allow, it does not decide.
_LAG_S = 0.010
_LAG_SHARE = 0.1
# A queue that grows by a twentieth of all that comes is one that targets may be too wide to tell of. Beyond
# that, the mean number under way differs between two spans of some seconds by a few times less than its root:
# one and a half times it is chance in one rate of some hundreds.
_GROWN_SHARE = 0.05
_SCATTER = 1.5

_UNSURE = ("client", "queue")
"""Misses that one try does not settle."""

Miss = Literal["", "TTFT", "ITL", "queue", "client"]
"""What was missed: a target, the queue that grew, or the client's time. Empty if the rate was held."""


@dataclass(frozen=True, slots=True)
class Targets:
    """The targets to meet; None for one that an empty replica misses, which is left out."""

    percentile: int
    ttft_s: float | None
    itl_s: float | None


def targets(step: StepTime, mix: Mix, knobs: Knobs) -> Targets:
    """Those of `knobs` that an empty replica meets by the law, as the formula goes by."""
    alone = feasibility(step, mix, knobs)
    return Targets(
        knobs.ttft_percentile,
        knobs.ttft_target_s if alone.ttft else None,
        knobs.itl_target_s if alone.itl else None,
    )


@dataclass(frozen=True, slots=True)
class Rate:
    """The result of one rate. Seconds; infinite if the percentile falls on requests without an answer."""

    rps: float
    requests: int
    """That count: those whose intended time is past the transient."""
    ttft_s: float
    itl_s: float
    attained: float
    """Share of them with TTFT, and mean time between tokens, within the targets."""
    miss: Miss
    lag_s: float
    """The client's lateness at the 99th percentile."""

    @property
    def held(self) -> bool:
        """Whether nothing was missed."""
        return not self.miss


def hold_s(rps: float, asked_s: float, again: bool = False) -> float:
    """How long to keep a rate: `asked_s`, or longer where fewer than a hundred requests would count.

    Twice as long `again`: in the same time a batch that settles slowly would seem to grow again.
    """
    once_s = max(asked_s, min(_FEWEST / ((1.0 - _TRANSIENT) * rps), _LONGEST * asked_s))
    return 2.0 * once_s if again else once_s


def judge(rps: float, for_s: float, records: Sequence[Record], kept: Timekeeping, wanted: Targets) -> Rate:
    """Judge a rate by its `records`; it was kept for `for_s` seconds.

    A request without a first token has an infinite TTFT, whatever became of it. Of inter-token latencies
    those count that ended while requests came: what follows is a replica that runs empty.
    """
    begin_s = _TRANSIENT * for_s
    counted = [record for record in records if begin_s <= record.at_s < for_s]
    first_s = [NEVER if record.ttft_s is None else record.ttft_s for record in counted]
    gaps = np.concatenate([np.empty(0), *(_gaps(record, begin_s, for_s) for record in records)])
    share = wanted.percentile / 100.0
    ttft_s = percentile(np.sort(np.array(first_s)), share) if first_s else NEVER
    # Without a single pair of tokens there is no latency between them, unless nothing came at all.
    itl_s = percentile(np.sort(gaps), share) if len(gaps) else 0.0 if math.isfinite(ttft_s) else NEVER
    lag_s = max(kept.sent_p99_ms, kept.noticed_p99_ms) / 1000.0
    late = lag_s > max(_LAG_S, _LAG_SHARE * wanted.ttft_s if wanted.ttft_s is not None else 0.0)
    miss: Miss = ""
    if late:
        miss = "client"
    elif wanted.ttft_s is not None and ttft_s > wanted.ttft_s:
        miss = "TTFT"
    elif wanted.itl_s is not None and itl_s > wanted.itl_s:
        miss = "ITL"
    elif _grew(records, begin_s, for_s):
        miss = "queue"
    good = sum(_in_time(record, wanted) for record in counted)
    return Rate(rps, len(counted), ttft_s, itl_s, good / max(len(counted), 1), miss, lag_s)


def _gaps(record: Record, begin_s: float, end_s: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Times between pieces, of those that ended within the bounds."""
    at_s = np.array(record.pieces_s)
    ends = at_s[1:]
    gaps: np.ndarray[tuple[int], np.dtype[np.float64]] = np.diff(at_s)[(ends >= begin_s) & (ends < end_s)]
    return gaps


def _in_time(record: Record, wanted: Targets) -> bool:
    """Whether a request met the targets, as goodput: by its TTFT and its mean time per output token."""
    if record.ttft_s is None or record.outcome != "answered":
        return False
    pieces = record.pieces_s
    mean_s = (pieces[-1] - pieces[0]) / (len(pieces) - 1) if len(pieces) > 1 else 0.0
    ttft_ok = wanted.ttft_s is None or record.ttft_s <= wanted.ttft_s
    return ttft_ok and (wanted.itl_s is None or mean_s <= wanted.itl_s)


def _grew(records: Sequence[Record], begin_s: float, end_s: float) -> bool:
    """Whether fewer requests were answered than came, by those under way in the first and the last third."""
    third_s = (end_s - begin_s) / 3.0
    first, last = (_under_way(records, at_s, at_s + third_s) for at_s in (begin_s, end_s - third_s))
    between = sum(begin_s + third_s / 2.0 <= record.at_s < end_s - third_s / 2.0 for record in records)
    return last - first > _GROWN_SHARE * between + _SCATTER * math.sqrt(max(first, last))


def _under_way(records: Sequence[Record], begin_s: float, end_s: float) -> float:
    """The mean number of requests open between two times."""
    open_s = sum(max(0.0, min(record.ended_s, end_s) - max(record.at_s, begin_s)) for record in records)
    return open_s / (end_s - begin_s)


def next_rps(tried: Sequence[Rate], first_rps: float) -> float | None:
    """The rate to try after those; None once the knee is known to within 5 %, or cannot be found.

    Up from `first_rps` by a quarter until a rate is missed, or down by halves until one is held; then between
    the highest held and the lowest missed. A rate missed for the client's lateness alone, or for a queue that
    grew while both latencies were within their targets, is tried once more: a machine that was busy for a
    moment says nothing of the replica, and near its knee a batch takes longer than a rate's time to settle.
    """
    if not tried:
        return first_rps
    last = tried[-1]
    if last.miss in _UNSURE and sum(rate.rps == last.rps for rate in tried) == 1:
        return last.rps
    newest = {rate.rps: rate for rate in tried}.values()
    held = max((rate.rps for rate in newest if rate.held), default=None)
    missed = min((rate.rps for rate in newest if not rate.held), default=None)
    if missed is None:
        return None if len(newest) > _MOST_GROWTHS or held is None else held * _GROWTH
    if held is None:
        return None if len(newest) > _MOST_HALVINGS else missed / 2.0
    if missed / held <= _RESOLUTION:
        return None
    return math.sqrt(held * missed)


def curve(tried: Sequence[Rate]) -> tuple[Rate, ...]:
    """The last try of each rate, by rate."""
    return tuple(sorted({rate.rps: rate for rate in tried}.values(), key=lambda rate: rate.rps))


def knee(tried: Sequence[Rate]) -> Rate | None:
    """The highest rate held; None if none was."""
    return next((rate for rate in reversed(curve(tried)) if rate.held), None)
