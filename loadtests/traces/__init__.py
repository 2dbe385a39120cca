"""Recorded traffic from files, whatever wrote them."""

from loadtests.traces.array_trace import ArrayTrace
from loadtests.traces.file_trace import open_trace
from loadtests.traces.formats import FORMATS
from loadtests.traces.trace import TraceError

__all__ = ["FORMATS", "ArrayTrace", "TraceError", "open_trace"]
