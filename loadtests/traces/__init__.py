"""Recorded traffic from files, whatever wrote them."""

from loadtests.traces.arrays import ArrayTrace
from loadtests.traces.detect import FORMATS
from loadtests.traces.errors import TraceError
from loadtests.traces.opened import open_trace

__all__ = ["FORMATS", "ArrayTrace", "TraceError", "open_trace"]
