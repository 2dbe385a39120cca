"""Where an engine replica writes its request log."""

from __future__ import annotations

from pathlib import Path

import ray

from serve_app.settings.tree import RequestLogSettings
from serve_app.telemetry.log_segments import LogSegments
from serve_app.telemetry.request_log import RequestLog


def open_request_log(
    settings: RequestLogSettings, app: str, deployment: str, replica: str
) -> RequestLog | None:
    """The request log of a replica, or None where it is switched off. A file comes with the first line."""
    if not settings.enabled:
        return None
    folder = Path(settings.directory) if settings.directory is not None else serve_log_folder()
    return RequestLog(LogSegments(folder, ("requests", app, deployment), replica, settings.max_bytes))


def serve_log_folder() -> Path:
    """Where Ray Serve keeps its logs on this node, which log shippers and `ray logs` know."""
    context = ray.get_runtime_context()
    return Path(context.get_temp_dir(), context.get_session_name(), "logs", "serve")
