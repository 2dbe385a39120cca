from pathlib import Path

import pytest
import yaml

from serve_app import env
from serve_app.cli.main import main

CONFIG = Path(__file__).parents[2] / "config"


POLICY = "serve_app.controller.serve_policy:ServePolicy"


def document(model: str, **knobs: object) -> str:
    name = yaml.safe_load(model)["name"]
    user_config = {"autoscaling": {name: knobs}} if knobs else {}
    app = {
        "name": "t",
        "import_path": "serve_app.app:build",
        "autoscaling_policy": {"policy_function": POLICY},
        "args": {"models": [yaml.safe_load(model)]},
        "deployments": [{"name": "Ingress", "user_config": user_config}],
    }
    return yaml.safe_dump({"applications": [app]})


def test_a_valid_file_is_summed_up_model_by_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(document("{name: a, device: cpu}", max_replicas=3, min_replicas=1, itl_target_s=0.1))

    assert main(["check", str(path)]) == 0

    out, err = capsys.readouterr()
    assert out.splitlines() == [
        f"{path}: application 't' is valid",
        "  a: embedded on CPU; 1 to 3 replicas; targets: p95 TTFT 200 ms, ITL 100 ms, "
        "8 queued requests per replica",
        "  ingress: 2 to 4 replicas; 200 streams per replica",
        "  ledger: an SQLite file on each node; several nodes need a Postgres in ledger.url",
        "  batches: an SQLite file (will be made), files in a folder (will be made)",
        "  batches: for one node; several nodes need a Postgres in batch.database and an object store in "
        "batch.files",
        "listens on 127.0.0.1:8000; only this machine can connect; --host 0.0.0.0 opens it to others",
    ]
    assert err == ""


def test_each_variant_has_its_placement_and_price(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    spot = "{name: spot, usd_per_hour: 1.2, preemptible: true, resources: {spot: 0.001}}"
    dear = "{name: on-demand, accelerator_type: H100, usd_per_hour: 3.7, max_replicas: 4}"
    path.write_text(document(f"{{name: a, variants: [{spot}, {dear}]}}"))

    assert main(["check", str(path)]) == 0

    out = capsys.readouterr().out
    assert "  a: 1 to 1 replicas" in out
    assert "    spot: embedded on 1 x A100 per replica; 0 to any number of replicas; 1.2 USD/h each, " in out
    assert "    on-demand: embedded on 1 x H100 per replica; 0 to 4 replicas; 3.7 USD/h each\n" in out
    assert "no price" not in out


def test_a_folder_that_is_not_here_is_a_warning(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    folder = tmp_path / "gone"
    path.write_text(document(f"{{name: a, device: cpu, model: {folder}}}"))

    assert main(["check", str(path)]) == 0
    assert (
        f"  WARNING: models[0].model = '{folder}': no such folder on this machine: `tideserve run` refuses "
        "it here; each node that serves needs it"
    ) in capsys.readouterr().out.splitlines()

    folder.mkdir()
    assert main(["check", str(path)]) == 0
    assert "WARNING" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("ledger", "environment", "text"),
    [
        ({"enabled": False}, "", "off"),
        ({"url": "postgresql://host/db"}, "", "Postgres"),
        ({}, "postgresql://u:secret@host/db", "Postgres"),
        (
            {"url": "postgresql://host/db", "gpu_hour_prices": {"H100": 4}},
            "",
            "Postgres; no price in gpu_hour_prices for a",
        ),
        ({"url": "postgresql://host/db", "gpu_hour_prices": {"A100": 2}}, "", "Postgres"),
    ],
)
def test_check_says_where_usage_is_written(
    ledger: dict[str, object],
    environment: str,
    text: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv(env.LEDGER_URL, environment)
    file = yaml.safe_load(document("{name: a}"))
    file["applications"][0]["args"]["ledger"] = ledger
    path = tmp_path / "serve.yaml"
    path.write_text(yaml.safe_dump(file))

    assert main(["check", str(path)]) == 0

    assert f"  ledger: {text}\n" in capsys.readouterr().out


def test_the_host_is_checked_and_its_risk_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(document("{name: a}") + "http_options: {host: 0.0.0.0}\n")
    assert main(["check", str(path)]) == 0
    assert "\nWARNING: no API keys: any program that can connect to port 8000" in capsys.readouterr().out

    path.write_text(document("{name: a}") + "http_options: {host: everywhere}\n")
    assert main(["check", str(path)]) == 2
    assert "http_options.host = 'everywhere': must be an IP address" in capsys.readouterr().err


WINDOW = {"start": "08:00", "end": "18:00", "min_replicas": 1}
ADVISE = {"min_replicas": 1, "mode": "advise", "ttft_target_s": 2, "ttft_percentile": 50}


@pytest.mark.parametrize(
    ("model", "knobs", "part"),
    [
        ("{name: a}", {"min_replicas": 0}, "; 0 to 1 replicas; "),
        ("{name: a}", {"min_replicas": 0, "downscale_to_zero_delay_s": 60}, "; to zero after 60 s idle"),
        (
            "{name: a}",
            {"schedules": [WINDOW], **ADVISE},
            "p50 TTFT 2 s, ITL 25 ms, 8 queued requests per replica; 1 schedule; advice only",
        ),
        ("{name: a}", {"schedules": [WINDOW, WINDOW], **ADVISE}, "2 schedules"),
        ("{name: a, model: m/M, tensor_parallel_size: 4}", {}, "  a: m/M on 4 x A100 per replica; "),
        ("{name: a, tensor_parallel_size: 2, pipeline_parallel_size: 3}", {}, " on 6 x A100 per replica; "),
        ("{name: a, accelerator_type: null}", {}, "  a: embedded on 1 x any GPU per replica"),
    ],
)
def test_a_model_s_line_has_placement_bounds_and_targets(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model: str, knobs: dict[str, object], part: str
) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(document(model, **knobs))
    assert main(["check", str(path)]) == 0
    assert part in capsys.readouterr().out.splitlines()[1]


def test_show_prints_all_in_force_as_a_valid_configuration(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["check", "--show", str(CONFIG / "serve.a100.yaml")]) == 0

    shown = yaml.safe_load(capsys.readouterr().out)["tideserve"]
    (model,) = shown["args"]["models"]
    assert model["max_model_len"] == 16384  # the file's
    assert model["max_num_seqs"] == 128  # the profile's
    assert model["drain_timeout_s"] == 600  # the default
    assert shown["args"]["http"]["max_body_bytes"] == 8 << 20
    knobs = shown["user_config"]["autoscaling"][model["name"]]
    assert knobs["max_replicas"] == 8  # the file's
    assert knobs["keep_alive_interval_s"] == 5  # the default
    assert shown["user_config"]["ingress"]["target_ongoing_requests"] == 200

    app = yaml.safe_load((CONFIG / "serve.a100.yaml").read_text())["applications"][0]
    ingress = {"name": "Ingress", "user_config": shown["user_config"]}
    path = tmp_path / "serve.yaml"
    path.write_text(
        yaml.safe_dump({"applications": [{**app, "args": shown["args"], "deployments": [ingress]}]})
    )
    assert main(["check", "--show", str(path)]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["tideserve"] == shown


def test_invalid_file_is_reported_with_exit_status_2(
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


def test_bounds_that_leave_an_engine_no_room_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(document("{name: a, device: cpu, cpus_per_replica: 0.4}"))
    assert main(["check", str(path), "--cpus", "2"]) != 0

    err = capsys.readouterr().err
    assert "deployments[0].user_config.ingress.max_replicas = 4" in err
    assert "must be at most 3" in err

    monkeypatch.setenv(env.RAY_RESOURCES, '{"CPU": 2}')
    assert main(["check", str(path)]) != 0
    assert main(["check", str(path), "--cpus", "2.4"]) == 0


def test_check_lists_what_this_machine_lacks_for_gpus(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("serve_app.cli.gpu_machine.read_driver", lambda: None)
    monkeypatch.setenv(env.RAY_RESOURCES, '{"CPU": 8}')
    path = tmp_path / "serve.yaml"
    for device, options, told in (("gpu", (), True), ("gpu", ("--cpus", "8"), False), ("cpu", (), False)):
        path.write_text(document(f"{{name: a, device: {device}}}"))
        assert main(["check", str(path), *options]) == 0
        out = capsys.readouterr().out
        assert ("this machine cannot serve it yet: no NVIDIA driver answers" in out) is told


@pytest.mark.parametrize(
    ("name", "replicas"),
    [
        ("serve.yaml", "1 to 1"),
        ("serve.gpu.yaml", "1 to 2"),
        ("serve.zero.yaml", "1 to 1"),
        ("serve.multi-model.yaml", "1 to 1"),
        ("serve.a100.yaml", "2 to 4"),
        ("serve.tp4.yaml", "2 to 4"),
    ],
)
def test_example_configurations_fit_their_machines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, replicas: str
) -> None:
    monkeypatch.setenv(env.RAY_RESOURCES, '{"CPU": 2}')

    assert main(["check", str(CONFIG / name)]) == 0
    out = capsys.readouterr().out
    assert f"  ingress: {replicas} replicas" in out
    assert ("one replica: new requests get 503 after a crash" in out) is replicas.startswith("1 ")
