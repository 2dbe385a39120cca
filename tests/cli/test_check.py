from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from serve_app.cli.main import main

CONFIG = Path(__file__).parents[2] / "config"


def test_a_valid_file_is_summed_up_model_by_model(capsys: pytest.CaptureFixture[str]) -> None:
    path = CONFIG / "serve.multi-model.yaml"

    assert main(["check", str(path)]) == 0

    out, err = capsys.readouterr()
    assert out.splitlines() == [
        f"{path}: application 'tideserve' is valid",
        "  tideserve-tiny: embedded on CPU a replica, 1 to 1 replicas",
        "  tideserve-tiny-embed: embedded on CPU a replica, 1 to 1 replicas",
    ]
    assert err == ""


def test_gpus_are_told_with_their_number_and_type(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(CONFIG / "serve.tp4.yaml")]) == 0

    assert "Llama-3.3-70B-Instruct on 4 x A100 a replica, 0 to 2 replicas" in capsys.readouterr().out


def test_any_gpu_is_told_as_such(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(document("{name: a, accelerator_type: null}"))

    assert main(["check", str(path)]) == 0

    assert "a: embedded on 1 x any GPU a replica" in capsys.readouterr().out


def document(model: str) -> str:
    return f"applications: [{{name: t, import_path: 'serve_app.app:build', args: {{models: [{model}]}}}}]"


def test_show_prints_every_setting_in_force_as_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--show", str(CONFIG / "serve.a100.yaml")]) == 0

    settings = yaml.safe_load(capsys.readouterr().out)["tideserve"]
    (model,) = settings["models"]
    assert model["max_model_len"] == 16384  # the file's
    assert model["max_num_seqs"] == 128  # the profile's
    assert model["drain_timeout_s"] == 600  # the default
    assert settings["http"]["max_body_bytes"] == 8 << 20


def test_an_invalid_file_is_told_on_standard_error_and_in_the_exit_status(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(document("{name: a, max_num_seqs: 0, dtypes: auto}"))

    assert main(["check", str(path)]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "tideserve: invalid settings:",
        "  - applications[0].args.models[0].max_num_seqs = 0: input should be greater than or equal to 1",
        "  - applications[0].args.models[0].dtypes = 'auto': no such setting",
    ]


def test_a_missing_file_is_no_traceback(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["check", str(tmp_path / "none.yaml")]) == 2

    assert "No such file or directory" in capsys.readouterr().err
