"""A trace in memory."""

from typing import Any

import numpy as np
import pytest

from tests.traces.files import requests
from traces import ArrayTrace, TraceError
from traces.trace import CHUNK_REQUESTS, Trace


def test_arrays_are_a_trace_in_order_of_arrival() -> None:
    trace: Trace = ArrayTrace("burst", [2.0, 0.5, 2.0], [3, 1, 4], [0, 5, 6])

    read = requests(trace)
    assert (read.arrivals, read.inputs, read.outputs) == ([0.5, 2.0, 2.0], [1, 3, 4], [5, 1, 6])
    assert (trace.name, trace.block_tokens) == ("burst", 0)


def test_long_arrays_come_in_chunks() -> None:
    count = 2 * CHUNK_REQUESTS + 1
    trace = ArrayTrace("long", np.arange(count), np.ones(count), np.ones(count, dtype=np.int32))

    assert [len(chunk) for chunk in trace.chunks()] == [CHUNK_REQUESTS, CHUNK_REQUESTS, 1]
    assert len(requests(trace).inputs) == count


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (([], [], []), "x: has no requests"),
        (([1.0], [1, 2], [1]), "x: must be three arrays of one length"),
        (([[1.0]], [[1]], [[1]]), "x: must be three arrays of one length"),
        (([0.0, -1.0], [1, 1], [1, 1]), r"x: arrival_s\[1\] = -1.0: must be from 0 to 315360000"),
        (([0.0, float("nan")], [1, 1], [1, 1]), r"x: arrival_s\[1\] = nan: must be from"),
        (([0.0], [0], [1]), r"x: input_tokens\[0\] = 0: must be a whole number from 1 to 10000000"),
        (([0.0], [1.5], [1]), r"x: input_tokens\[0\] = 1.5: must be a whole number from 1"),
        (([0.0], [1], [10**8]), r"x: output_tokens\[0\] = 100000000: must be a whole number from 0"),
    ],
)
def test_wrong_arrays_are_named(columns: tuple[Any, Any, Any], says: str) -> None:
    with pytest.raises(TraceError, match=says):
        ArrayTrace("x", *columns)
