"""The knee of a replica, above which it misses its targets: the verdict on a rate and the next rate. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from loadtests.columns import NEVER, percentile
from loadtests.record import Record, Timekeeping
from replay.capacity.method import USUAL, Method
from serve_app.policy.capacity_model import Mix, StepTime, feasibility
from serve_app.settings.knobs import Knobs

FIRST_SHARE = 0.5
"""The first rate to try, as a share of the formula's."""
_TRANSIENT = 0.25
"""Share of a rate's time that does not count. The batch is that of the rate when the first requests have
ended: 128 tokens at 25 ms are 3.2 s, and a quarter of the usual 20 s is 5 s."""
_LAG_SHARE = 0.1
"""The client's lateness is in every latency. Below this share of the TTFT target, it does not decide."""
_GROWN_SHARE = 0.05
"""A queue grows if it gains a twentieth of all arrivals. Wide targets may not show that."""
_SCATTER = 1.5
"""Times the root of the number of open requests: a gain that one rate in some hundreds has by chance."""

_UNSURE = ("client", "queue")
"""Failures that one try does not settle."""

Miss = Literal["", "TTFT", "ITL", "queue", "client"]
"""The reason why a rate failed: a target, a growing queue, or a late client. Empty if it passed."""


@dataclass(frozen=True, slots=True)
class Targets:
    """The targets to meet; None for a target that an empty replica misses."""

    percentile: int
    ttft_s: float | None
    itl_s: float | None


def targets(step: StepTime, mix: Mix, knobs: Knobs) -> Targets:
    """The targets of `knobs` that an empty replica meets by the step-time model."""
    alone = feasibility(step, mix, knobs)
    return Targets(
        knobs.ttft_percentile,
        knobs.ttft_target_s if alone.ttft else None,
        knobs.itl_target_s if alone.itl else None,
    )


@dataclass(frozen=True, slots=True)
class Rate:
    """The result of one rate. A latency is infinite if its percentile falls on requests without an answer."""

    rps: float
    requests: int
    """Requests that count: their intended time is past the transient."""
    ttft_s: float
    itl_s: float
    attained: float
    """Share of these with TTFT, and mean time between tokens, within the targets."""
    miss: Miss
    lag_s: float
    """The client's lateness at the 99th percentile."""

    @property
    def passed(self) -> bool:
        """Whether the replica kept up with the rate."""
        return not self.miss


def duration_s(rps: float, asked_s: float, again: bool = False, method: Method = USUAL) -> float:
    """The seconds to keep a rate: `asked_s`, or longer if fewer than a hundred requests would count.

    Twice as long `again`: in the same time a batch that settles slowly would seem to grow again.
    """
    enough_s = method.fewest_requests / ((1.0 - _TRANSIENT) * rps)
    once_s = max(asked_s, min(enough_s, method.longest_factor * asked_s))
    return 2.0 * once_s if again else once_s


def judge(
    rps: float,
    for_s: float,
    records: Sequence[Record],
    kept: Timekeeping,
    wanted: Targets,
    method: Method = USUAL,
) -> Rate:
    """Judge a rate that was kept for `for_s` seconds by its `records`.

    A request without a first token has an infinite TTFT. Inter-token latencies count only until the last
    arrival, because the replica runs empty afterwards.
    """
    begin_s = _TRANSIENT * for_s
    counted = [record for record in records if begin_s <= record.at_s < for_s]
    first_s = [NEVER if record.ttft_s is None else record.ttft_s for record in counted]
    gaps = np.concatenate([np.empty(0), *(_gaps(record, begin_s, for_s) for record in records)])
    share = wanted.percentile / 100.0
    ttft_s = percentile(np.sort(np.array(first_s)), share) if first_s else NEVER
    # Answers of one token have no inter-token latency; without any answer it is infinite.
    itl_s = percentile(np.sort(gaps), share) if len(gaps) else 0.0 if math.isfinite(ttft_s) else NEVER
    lag_s = max(kept.sent_p99_ms, kept.noticed_p99_ms) / 1000.0
    late = lag_s > max(method.client_lag_s, _LAG_SHARE * wanted.ttft_s if wanted.ttft_s is not None else 0.0)
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
    """The times between pieces that ended within the bounds."""
    at_s = np.array(record.pieces_s)
    ends = at_s[1:]
    gaps: np.ndarray[tuple[int], np.dtype[np.float64]] = np.diff(at_s)[(ends >= begin_s) & (ends < end_s)]
    return gaps


def _in_time(record: Record, wanted: Targets) -> bool:
    """Whether a request counts as goodput: its TTFT and its mean time per output token met the targets."""
    if record.ttft_s is None or record.outcome != "answered":
        return False
    pieces = record.pieces_s
    mean_s = (pieces[-1] - pieces[0]) / (len(pieces) - 1) if len(pieces) > 1 else 0.0
    ttft_ok = wanted.ttft_s is None or record.ttft_s <= wanted.ttft_s
    return ttft_ok and (wanted.itl_s is None or mean_s <= wanted.itl_s)


def _grew(records: Sequence[Record], begin_s: float, end_s: float) -> bool:
    """Whether more requests were open in the last third of the time than in the first."""
    third_s = (end_s - begin_s) / 3.0
    first, last = (_under_way(records, at_s, at_s + third_s) for at_s in (begin_s, end_s - third_s))
    between = sum(begin_s + third_s / 2.0 <= record.at_s < end_s - third_s / 2.0 for record in records)
    return last - first > _GROWN_SHARE * between + _SCATTER * math.sqrt(max(first, last))


def _under_way(records: Sequence[Record], begin_s: float, end_s: float) -> float:
    """The mean number of requests open between two times."""
    open_s = sum(max(0.0, min(record.ended_s, end_s) - max(record.at_s, begin_s)) for record in records)
    return open_s / (end_s - begin_s)


def next_rps(tried: Sequence[Rate], first_rps: float, method: Method = USUAL) -> float | None:
    """The rate to try after these; None once the knee is known to within 5 %, or cannot be found.

    The search goes up from `first_rps` by a quarter until a rate fails, or down by halves until one passes.
    Then it tries rates between the highest that passed and the lowest that failed. A rate that failed only
    for a late client or a growing queue is tried once more: a machine may be busy for a moment, and near the
    knee a batch takes longer than a rate's time to settle.
    """
    if not tried:
        return first_rps
    last = tried[-1]
    if last.miss in _UNSURE and sum(rate.rps == last.rps for rate in tried) == 1:
        return last.rps
    newest = {rate.rps: rate for rate in tried}.values()
    passed = max((rate.rps for rate in newest if rate.passed), default=None)
    failed = min((rate.rps for rate in newest if not rate.passed), default=None)
    if failed is None:
        return None if len(newest) > method.most_growths or passed is None else passed * method.growth
    if passed is None:
        return None if len(newest) > method.most_halvings else failed / 2.0
    if failed / passed <= method.resolution:
        return None
    return math.sqrt(passed * failed)


def curve(tried: Sequence[Rate]) -> tuple[Rate, ...]:
    """The last try of each rate, by rate."""
    return tuple(sorted({rate.rps: rate for rate in tried}.values(), key=lambda rate: rate.rps))


def knee(tried: Sequence[Rate]) -> Rate | None:
    """The highest rate that passed; None if none did."""
    return next((rate for rate in reversed(curve(tried)) if rate.passed), None)
