"""Which zygotes `tideserve run` starts before Ray, and how."""

import os
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from serve_app import env
from serve_app.cli import early_zygotes
from serve_app.cli.config_file import read_config
from serve_app.cli.server_log import ServerLog
from serve_app.settings.tree import ModelSettings


def model(**more: Any) -> ModelSettings:
    return ModelSettings.model_validate({"name": "tide", "model": "embedded", "device": "cpu", **more})


def test_models_of_one_environment_have_one_zygote_which_has_that_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[tuple[str, int, Mapping[str, str]]] = []
    monkeypatch.setattr(
        early_zygotes,
        "start_zygote",
        lambda *given: started.append(given[:3]),  # a stub
    )
    models = [model(), model(name="same"), model(name="other", env={"VLLM_LOGGING_LEVEL": "DEBUG"})]

    with closing(ServerLog(tmp_path, verbose=False)) as log:
        early_zygotes.start_early_zygotes(models, {"RAY_flag": "1"}, tmp_path, log)

    (first, owner, values), (second, _, others) = started
    assert first == str(tmp_path / f"zygote-{values[env.ZYGOTE]}") != second
    assert owner == os.getpid()
    assert (values["RAY_flag"], values["HF_HUB_OFFLINE"], others["VLLM_LOGGING_LEVEL"]) == ("1", "1", "DEBUG")


def test_forked_are_the_models_whose_environment_the_file_tells(tmp_path: Path) -> None:
    def app(name: str, zygote: bool = True, **more: object) -> dict[str, object]:
        models = [{"name": name, "model": "embedded", "device": "cpu"}]
        policy = {"policy_function": "serve_app.controller.serve_policy:ServePolicy"}
        whole = {
            "import_path": "serve_app.app:build",
            "autoscaling_policy": policy,
            "route_prefix": f"/{name}",
        }
        return {**whole, "name": name, "args": {"models": models, "zygote": zygote}, **more}

    ours = [app("here"), app("cold", zygote=False), app("elsewhere", runtime_env={"env_vars": {"A": "1"}})]
    config = tmp_path / "serve.yaml"
    config.write_text(
        yaml.safe_dump({"applications": [*ours, {"import_path": "somebody:app", "name": "other"}]})
    )

    assert [model.name for model in read_config(config).forked] == ["here"]
