"""Recorded traffic from files, whatever wrote them."""

from serve_app.replay.traces.arrays import ArrayTrace
from serve_app.replay.traces.detect import FORMATS
from serve_app.replay.traces.errors import TraceError
from serve_app.replay.traces.opened import open_trace

__all__ = ["FORMATS", "ArrayTrace", "TraceError", "open_trace"]
