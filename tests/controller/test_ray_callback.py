from typing import Any

import pytest
from ray.serve._private.utils import call_function_from_import_path

from serve_app import env
from serve_app.controller import ray_callback


def test_ray_finds_and_calls_what_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []
    monkeypatch.setattr(ray_callback, "ask_seldom", lambda: called.append("nodes"))
    monkeypatch.setattr(ray_callback, "leave_out_quiet_turns", called.append)

    call_function_from_import_path(env.ALWAYS["RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH"])

    assert called[0] == "nodes"
    assert isinstance(called[1], ray_callback.QuietTurns)
