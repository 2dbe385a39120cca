"""Building PromQL that holds for any number of replicas and nodes, for restarts and for no traffic at all.

`rate` and `increase` see differences, so what a series counted before its first scrape is lost to them. With
scaling to zero that is much: the first requests of every new replica, its slowest ones. Ray cannot export an
empty histogram, therefore `counted` adds the first value of series that were not there before.
"""

from __future__ import annotations

from collections.abc import Iterable

STEP = "$__rate_interval"
"""The window of a point in a graph, at least four scrapes."""
SHOWN = "$__range"
"""The window of a number for the time the dashboard shows."""

_NAMESPACE = 'namespace=~"$namespace"'
_MODEL = 'model=~"$model"'


def ours(name: str, *matchers: str) -> str:
    """A series of Tideserve's, of the models and namespaces chosen."""
    return f"{name}{{{', '.join((_NAMESPACE, _MODEL, *matchers))}}}"


def cluster(name: str) -> str:
    """A series without the label `model`, of the namespaces chosen."""
    return f"{name}{{{_NAMESPACE}}}"


def total(what: str, by: Iterable[str] = (), how: str = "sum") -> str:
    """`what` over replicas, kept apart by labels."""
    labels = ", ".join(by)
    return f"{how} by ({labels}) ({what})" if labels else f"{how}({what})"


def rate(series: str, by: Iterable[str] = ()) -> str:
    """What a counter gains per second."""
    return total(f"rate({series}[{STEP}])", by)


def counted(series: str, window: str, by: Iterable[str] = ()) -> str:
    """What a counter gained in the window, what new series began with included.

    A series is new if it had no sample in the five minutes before the window, however the last of them was
    marked: a scrape that failed makes nothing new.
    """
    began = f"min_over_time({series}[{window}]) unless last_over_time({series}[5m] offset {window})"
    return total(f'increase({series}[{window}]) or label_replace({began}, "new", "1", "", "")', by)


def per_minute(series: str, by: Iterable[str] = ()) -> str:
    """Rare events, in a unit in which one of them can be seen."""
    return f"{counted(series, STEP, by)} * 60000 / $__rate_interval_ms"


def or_zero(expr: str) -> str:
    """0 where there is nothing. Only for an expression without labels."""
    return f"({expr}) or vector(0)"


def ratio(part: str, whole: str) -> str:
    """Nothing, rather than a division by zero, where the whole is nothing."""
    return f"({part}) / (({whole}) > 0)"


def quantile(q: float, histogram: str, window: str, by: Iterable[str] = (), matchers: str = "") -> str:
    """A quantile over all replicas; nothing, rather than NaN, where nothing was observed.

    Args:
        q: 0 to 1.
        histogram: Its name, without `_bucket`.
        window: Of the observations.
        by: Labels to keep apart.
        matchers: More of them, as PromQL writes them.
    """
    buckets = ours(f"{histogram}_bucket", *filter(None, [matchers]))
    return f"histogram_quantile({q:g}, {counted(buckets, window, ('le', *by))}) >= 0"


def share_within(histogram: str, bound_s: float, window: str, by: Iterable[str] = ()) -> str:
    """The share of observations within a bound, which has to be one of the histogram's."""
    within = counted(ours(f"{histogram}_bucket", f'le="{float(bound_s)}"'), window, by)
    return ratio(within, counted(ours(f"{histogram}_count"), window, by))


def mean(histogram: str, matchers: str = "", over: str = "") -> str:
    """The mean of a histogram's observations, or its sum for each observation of another, `over`.

    Ray rebuilds sums from buckets: each observation counts as the middle of its bucket.
    """
    more = tuple(filter(None, [matchers]))
    seconds = counted(ours(f"{histogram}_sum", *more), STEP)
    return ratio(seconds, counted(ours(f"{over or histogram}_count", *more), STEP))
