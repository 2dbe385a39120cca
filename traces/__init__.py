"""Recorded traffic from files, whatever wrote them."""

from traces.array_trace import ArrayTrace
from traces.file_trace import open_trace
from traces.formats import FORMATS
from traces.trace import TraceError

__all__ = ["FORMATS", "ArrayTrace", "TraceError", "open_trace"]
