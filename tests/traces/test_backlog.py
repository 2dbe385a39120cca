"""A backlog in addition to recorded traffic."""

import numpy as np
import pytest

from serve_app.settings.caller import LANES
from traces import ArrayTrace, TraceError
from traces.backlog import Backlog, WithBacklog
from traces.trace import Trace, join, without_background

HOUR_S = 3600.0


def day(hours: float = 24.0) -> ArrayTrace:
    """A request every ten seconds, with prompts of all lengths."""
    at = np.arange(0.0, hours * HOUR_S, 10.0)
    return ArrayTrace("day", at, 1 + np.arange(len(at)) % 1000, np.full(len(at), 20))


def arrivals(trace: Trace, lane: str) -> list[float]:
    whole = join(list(trace.chunks()))
    return [float(at) for at in whole.arrival_s[whole.lanes == LANES.index(lane)]]


def test_backlog_has_its_share_of_the_tokens_at_its_time() -> None:
    plain, trace = day(), WithBacklog(day(), Backlog.parse("20%@22:00-06:00"))
    whole, traffic = join(list(trace.chunks())), join(list(plain.chunks()))
    background = whole.lanes == LANES.index("background")
    tokens = whole.input_tokens + whole.output_tokens

    assert set(whole.arrival_s[background]) == {22 * HOUR_S}
    assert tokens[background].sum() / tokens[~background].sum() == pytest.approx(0.2, rel=0.01)
    assert (np.diff(whole.arrival_s) >= 0).all()
    assert without_background(whole).arrival_s.tolist() == traffic.arrival_s.tolist()
    # It can be read again.
    assert join(list(trace.chunks())).input_tokens.tolist() == whole.input_tokens.tolist()


def test_backlog_comes_once_a_day_while_the_trace_lasts() -> None:
    trace = WithBacklog(day(36.0), Backlog.parse("10%@10:00-12:30"))

    assert sorted(set(arrivals(trace, "background"))) == [10 * HOUR_S, 34 * HOUR_S]
    assert trace.name == "day"


def test_deadlines_follow_their_submissions() -> None:
    backlog = Backlog.parse("20%@22:00-06:00")

    assert backlog.times(21 * HOUR_S) == []
    assert backlog.times(23 * HOUR_S) == [(22 * HOUR_S, 30 * HOUR_S)]
    assert [at for at, _ in backlog.times(48 * HOUR_S)] == [22 * HOUR_S, 46 * HOUR_S]
    # Of a half of the trace that begins at noon, or at midnight.
    assert backlog.since(12 * HOUR_S).times(12 * HOUR_S) == [(10 * HOUR_S, 18 * HOUR_S)]
    assert backlog.since(23 * HOUR_S).submit_s == 23 * HOUR_S
    assert Backlog.parse("5%@01:00-01:00").due_s == 24 * HOUR_S


@pytest.mark.parametrize(
    "text",
    [
        "",
        "20%",
        "0%@22:00-06:00",
        "101%@22:00-06:00",
        "20%@24:00-06:00",
        "20%@22:60-06:00",
        "1.2.3%@1:00-2:00",
    ],
)
def test_wrong_backlog_is_named_with_its_bounds(text: str) -> None:
    with pytest.raises(TraceError, match=r"must be a share above 0 % and at most 100 %, and two times"):
        Backlog.parse(text)


def test_backlog_after_the_end_of_the_trace_is_an_error() -> None:
    trace = WithBacklog(day(2.0), Backlog.parse("20%@22:00-06:00"))

    with pytest.raises(
        TraceError, match="day: ends after 7190 s, before its backlog is submitted at 79200 s"
    ):
        list(trace.chunks())
