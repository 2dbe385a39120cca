"""Where a replica's request log is."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from serve_app.engine import log_folder
from serve_app.engine.log_folder import open_request_log, serve_log_folder
from serve_app.settings import RequestLogSettings
from tests.telemetry.test_request_log import line


async def test_the_settings_say_where(tmp_path: Path) -> None:
    settings = RequestLogSettings(directory=str(tmp_path))

    log = open_request_log(settings, "tideserve", "Engine-tide", "abc123")

    assert log is not None
    log.add(line())
    await log.close()
    assert [path.name for path in tmp_path.iterdir()] == ["requests.tideserve.Engine-tide.abc123.0001.jsonl"]


def test_a_log_that_is_switched_off_is_none() -> None:
    assert open_request_log(RequestLogSettings(enabled=False), "tideserve", "Engine-tide", "abc123") is None


def test_by_default_it_is_beside_the_logs_of_ray_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(get_temp_dir=lambda: "/tmp/ray", get_session_name=lambda: "session_1")
    monkeypatch.setattr(log_folder.ray, "get_runtime_context", lambda: context)

    assert serve_log_folder() == Path("/tmp/ray/session_1/logs/serve")
