"""Recorded traffic from files, whatever wrote them."""

from traces.file_trace import open_trace
from traces.formats import FORMATS
from traces.trace import ArrayTrace, TraceError

__all__ = ["FORMATS", "ArrayTrace", "TraceError", "open_trace"]
