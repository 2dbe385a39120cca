"""Zygotes that a process starts for itself."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from serve_app import env
from serve_app.settings.tree import ModelSettings
from serve_app.zygote import start as start_module
from serve_app.zygote.start import own_zygote, start_early_zygotes
from tests.zygote.conftest import MARK, Start, wait_for


def test_what_is_started_meanwhile_is_forked_and_outlives_the_zygote(python: Start) -> None:
    with own_zygote(MARK):
        socket = os.environ[env.ZYGOTE_SOCKET]
        wait_for(Path(socket))
        program = (
            f"import os, sys; print(os.getppid(), {MARK!r} in sys.modules, flush=True); input(); print('on')"
        )
        process = python("-c", program, socket=socket)
        assert process.stdout is not None
        zygote, forked = process.stdout.readline().split()
    assert forked == "True"
    assert not psutil.pid_exists(int(zygote))
    assert env.ZYGOTE_SOCKET not in os.environ
    assert not os.path.exists(socket)
    assert process.communicate("\n", timeout=60)[0].strip() == "on"


def model(**more: Any) -> ModelSettings:
    return ModelSettings.model_validate({"name": "tide", "model": "embedded", "device": "cpu", **more})


def test_models_of_one_environment_share_a_zygote(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[tuple[str, int, Mapping[str, str]]] = []
    monkeypatch.setattr(
        start_module,
        "start_zygote",
        lambda *given: started.append(given[:3]),  # a stub
    )
    models = [model(), model(name="same"), model(name="other", env={"VLLM_LOGGING_LEVEL": "DEBUG"})]

    with open(os.devnull, "wb") as output:
        start_early_zygotes(models, {"RAY_flag": "1"}, tmp_path, output)

    (first, owner, values), (second, _, others) = started
    assert first == str(tmp_path / f"zygote-{values[env.ZYGOTE]}") != second
    assert owner == os.getpid()
    assert (values["RAY_flag"], values["HF_HUB_OFFLINE"], others["VLLM_LOGGING_LEVEL"]) == ("1", "1", "DEBUG")
