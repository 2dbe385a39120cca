"""Values of the chart from configurations: what runs on a laptop installs on a cluster."""

import argparse
import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from serve_app.cli import CommandError, chart_values
from serve_app.cli.application_checks import check_application
from serve_app.cli.config_file import ConfigFile, read_config
from serve_app.cli.main import main
from tests.kubernetes.chart import ray_service
from tests.kubernetes.tools import PROJECT

LAPTOP = PROJECT / "config/serve.yaml"
FROM_PROFILE = {"resources", "drain_timeout_s", "placement_group_strategy"}
"""Resources tie replicas to pods; models without a drain time have the release's."""


def served(config: ConfigFile, name: str = "tideserve") -> dict[str, Any]:
    """The settings and knobs in force, without those that only a cluster has."""
    app = config.applications[name]
    settings = app.settings.model_dump(mode="json")
    for model in settings["models"]:
        for key in FROM_PROFILE:
            del model[key]
        if model["device"] == "cpu":
            del model["accelerator_type"]  # which has no meaning there
    for section in ("ingress", "batch"):
        settings[section].pop("resources")
    if not (settings["ledger"]["url"] or "").startswith("postgres"):
        settings["ledger"]["enabled"] = False  # pods share no SQLite file
    if not app.settings.batch.shared:
        settings["batch"]["enabled"] = False
    settings["models"].sort(key=lambda model: str(model["name"]))
    knobs = {model: knobs.model_dump(mode="json") for model, knobs in app.knobs.items()}
    return {"settings": settings, "knobs": knobs, "ingress": app.ingress_knobs.model_dump(mode="json")}


def installed(values: Path, folder: Path) -> ConfigFile:
    """The configuration in the RayService that the chart makes of values."""
    file = folder / "installed.yaml"
    file.write_text(ray_service(values)["spec"]["serveConfigV2"], encoding="utf-8")
    return read_config(file)


def written(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str) -> Path:
    assert main(["chart-values", *arguments]) == 0
    values = folder / "values.yaml"
    values.write_text(capsys.readouterr().out, encoding="utf-8")
    return values


def changed(folder: Path, args: dict[str, Any] | None = None, **first_model: Any) -> Path:
    """The laptop's configuration with other `args` and another first model."""
    document = yaml.safe_load(LAPTOP.read_text(encoding="utf-8"))
    application = document["applications"][0]
    application["args"]["models"][0] |= first_model
    application["args"] |= args or {}
    knobs = application["deployments"][0]["user_config"]["autoscaling"]
    knobs[application["args"]["models"][0]["name"]] = knobs.pop("tideserve-tiny")
    file = folder / "serve.yaml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return file


GPU: dict[str, Any] = {"device": "gpu", "model": "org/m", "name": "Org/M:v1", "cpus_per_replica": 1}


@pytest.mark.parametrize("config", sorted(PROJECT.glob("config/serve*.yaml")), ids=lambda path: path.stem)
def test_the_chart_serves_what_the_file_serves(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = written(capsys, tmp_path, str(config))
    assert served(installed(values, tmp_path)) == served(read_config(config))


@pytest.mark.parametrize(
    ("args", "model"),
    [
        ({}, {**GPU, "accelerator_type": "B200"}),
        ({}, {**GPU, "accelerator_type": None, "tensor_parallel_size": 2, "pipeline_parallel_size": 2}),
        ({"request_log": {"enabled": False}, "ui": False, "zygote": False}, {"cpus_per_replica": 6.5}),
        (
            {
                "telemetry": {"traces": {"enabled": True, "endpoint": "http://tempo:4317"}},
                "ledger": {"url": "postgresql://db/usage"},
            },
            GPU,
        ),
        ({"batch": {"database": "postgresql://db/batch", "files": "s3://b", "resources": {"node": 1}}}, {}),
        ({"ingress": {"cpus_per_replica": 3}, "http": {"max_body_bytes": 2048}}, {"cpus_per_replica": 2}),
    ],
)
def test_settings_beyond_the_defaults_of_the_chart_fit(
    args: dict[str, Any], model: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = changed(tmp_path, copy.deepcopy(args), **model)
    values = written(capsys, tmp_path, str(config), "--image", "registry.example/mine")
    assert served(installed(values, tmp_path)) == served(read_config(config))
    assert yaml.safe_load(values.read_text())["image"] == {"repository": "registry.example/mine"}


def test_settings_that_values_cannot_express_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = changed(tmp_path, {"http": {"api_keys_file": "/etc/keys"}}, chat_template="/etc/chat.jinja")
    document = yaml.safe_load(config.read_text(encoding="utf-8"))
    document["applications"][0]["runtime_env"] = {"env_vars": {"A": "b"}}
    document["applications"][0]["deployments"][0]["max_ongoing_requests"] = 5
    config.write_text(yaml.safe_dump(document), encoding="utf-8")
    assert main(["chart-values", str(config)]) == 0
    said = capsys.readouterr()
    for name in (
        "api_keys_file",
        "app.ledger.url",
        "app.batch.database",
        "runtime_env",
        "deployments[0].max_ongoing_requests",
        "models[0].chat_template",
    ):
        assert name in said.err
    assert "api_keys_file" not in said.out


def test_one_of_several_applications_must_be_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = yaml.safe_load(LAPTOP.read_text(encoding="utf-8"))
    [one] = document["applications"]
    document["applications"] = [one, {**one, "name": "other", "route_prefix": "/other"}]
    config = tmp_path / "serve.yaml"
    config.write_text(yaml.safe_dump(document), encoding="utf-8")
    assert installed(written(capsys, tmp_path, str(config), "--application", "other"), tmp_path)
    for name in (None, "none"):
        options = argparse.Namespace(config=config, application=name, image="x")
        with pytest.raises(CommandError, match="it has tideserve, other"):
            chart_values.chart_values(options)


def test_models_whose_names_differ_only_in_signs_keep_their_keys() -> None:
    document = yaml.safe_load(LAPTOP.read_text(encoding="utf-8"))["applications"][0]
    first = document["args"]["models"][0]
    document["args"]["models"] = [{**first, "name": name} for name in ("a_b", "A.B2", "a-b")]
    document["deployments"] = []
    checked = check_application(document)
    assert list(chart_values.values_of(document, checked)["models"]) == ["a-b", "a-b2", "a-b-2"]


def test_each_variant_has_a_profile_and_a_worker_group(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    variants = [
        {"name": "on-demand", "usd_per_hour": 3.7},
        {"name": "spot", "resources": {"spot": 0.001}, "usd_per_hour": 1.2, "preemptible": True},
        {"name": "l40s", "accelerator_type": "L40S", "usd_per_hour": 1.1, "quantization": "fp8"},
    ]
    gpu = {**GPU, "accelerator_type": "A100", "variants": variants}
    assert main(["chart-values", str(changed(tmp_path, **gpu))]) == 0
    out, err = capsys.readouterr()
    values = yaml.safe_load(out)
    (model, *_) = values["models"].values()

    profiles = [each["gpuProfile"] for each in model["variants"]]
    assert profiles == ["a100-80gb", "a100-80gb-spot", "l40s"]
    assert "resources" not in model["variants"][1]
    assert values["gpuProfiles"]["a100-80gb-spot"]["noticeSeconds"] == 25
    assert "gpuProfiles.a100-80gb-spot: set nodeSelector and tolerations" in err

    file = tmp_path / "values.yaml"
    file.write_text(out, encoding="utf-8")
    (installed_model, *_) = installed(file, tmp_path).applications["tideserve"].settings.models
    placed = {
        engine.variant: (engine.accelerator_type, engine.quantization) for engine in installed_model.engines()
    }
    assert placed == {"on-demand": ("A100", None), "spot": ("A100", None), "l40s": ("L40S", "fp8")}
    groups = {
        group["groupName"] for group in ray_service(file)["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    }
    assert groups >= set(profiles)


def test_a_version_runs_beside_the_replicas_of_its_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = {"name": "new", "accelerator_type": "L40S", "model": "a/b", "share": 0.05}
    gpu = {**GPU, "accelerator_type": "A100", "variants": [new]}
    assert main(["chart-values", str(changed(tmp_path, **gpu))]) == 0
    (model, *_) = yaml.safe_load(capsys.readouterr().out)["models"].values()

    assert (model["gpuProfile"], model["variants"][0]["gpuProfile"]) == ("a100-80gb", "l40s")
    assert model["variants"][0]["share"] == 0.05
