"""Recorded traffic from files of several formats."""

from traces.file_trace import open_trace
from traces.formats import FORMATS
from traces.trace import ArrayTrace, TraceError

__all__ = ["FORMATS", "ArrayTrace", "TraceError", "open_trace"]
