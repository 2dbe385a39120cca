"""`tideserve init`: from a model's files to a configuration that `check` and the chart accept."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from serve_app.cli import CommandError
from serve_app.cli.init_command import gpus_of, gpus_of_nodes
from serve_app.cli.main import main
from serve_app.gpus import Driver, Gpu
from serve_app.settings.fit.memory import GIB, GPUS, GpuKind
from serve_app.weights import embedded_adapter_path, embedded_model_path
from tests.kubernetes.chart import ray_service
from tests.settings.fit.models import MODELS


def model_folder(folder: Path, name: str, template: str | None = None, **config: Any) -> str:
    """The small files of a public model."""
    model = MODELS[name]
    path = folder / name.rpartition("/")[2]
    path.mkdir()
    (path / "config.json").write_text(json.dumps({**model.config, **config}))
    index = {"metadata": {"total_size": model.bytes}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    if template is not None:
        (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return str(path)


def init(folder: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """The written application and the text of its file."""
    file = folder / "serve.yaml"
    assert main(["init", *arguments, "--output", str(file)]) == 0
    text = file.read_text(encoding="utf-8")
    return yaml.safe_load(text)["applications"][0], text


def model_of(application: dict[str, Any]) -> dict[str, Any]:
    [model] = application["args"]["models"]
    return dict(model)


@pytest.mark.parametrize("gpu", ["h200", "l4", "a100-40gb", "rtx4090", "cpu"])
@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen3-Embedding-0.6B"])
def test_what_init_writes_is_valid(
    name: str, gpu: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, text = init(tmp_path, model_folder(tmp_path, name), "--gpu", gpu)
    assert main(["check", str(tmp_path / "serve.yaml")]) == 0
    assert "is valid" in capsys.readouterr().out
    assert all("#" in line for line in text.splitlines())
    assert "as in the configuration" not in text


def test_every_line_says_what_it_follows_from(tmp_path: Path) -> None:
    path = model_folder(tmp_path, "Qwen/Qwen3-32B", "<tool_call> <think>")
    application, text = init(tmp_path, path, "--gpu", "a100-80gb", "--gpus", "2")
    model = model_of(application)
    assert (model["tensor_parallel_size"], model["accelerator_type"]) == (1, "A100")
    assert (model["tool_call_parser"], model["reasoning_parser"]) == ("hermes", "qwen3")
    [line] = [line for line in text.splitlines() if "gpu_memory_utilization:" in line]
    assert "0.9 x 79.25 GiB - 61.0 GiB" in line
    knobs = application["deployments"][0]["user_config"]["autoscaling"]["qwen3-32b"]
    assert knobs["max_replicas"] == 2
    assert knobs["starting_values"]["step_base_s"] == pytest.approx(0.0388, rel=0.02)
    assert knobs["itl_target_s"] > 0.0388
    assert "cannot be met" in text


@pytest.mark.parametrize("name", ["openai/gpt-oss-120b", "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-8B"])
def test_step_time_follows_from_the_bytes_of_its_comment(name: str, tmp_path: Path) -> None:
    application, text = init(tmp_path, model_folder(tmp_path, name), "--gpu", "a100-80gb")
    model = model_of(application)
    [knobs] = application["deployments"][0]["user_config"]["autoscaling"].values()
    [line] = [line for line in text.splitlines() if "step_base_s:" in line]
    gibibytes = float(re.findall(r"([\d.]+) GiB", line)[0])
    expected = gibibytes * GIB / (0.85 * 2.039e12) + 1e-3
    stages = model.get("pipeline_parallel_size", 1)
    assert knobs["starting_values"]["step_base_s"] == pytest.approx(stages * expected, rel=0.02)
    assert ("2 stages" in line) == (stages == 2)


def test_large_models_span_nodes(tmp_path: Path) -> None:
    application, _ = init(tmp_path, model_folder(tmp_path, "deepseek-ai/DeepSeek-V3"), "--gpu", "a100-80gb")
    model = model_of(application)
    assert (model["tensor_parallel_size"], model["pipeline_parallel_size"]) == (8, 2)
    assert model["placement_group_strategy"] == "PACK"


@pytest.mark.parametrize(
    ("name", "task"),
    [("openai/whisper-large-v3", "transcribe"), ("BAAI/bge-m3", "embed"), ("Qwen/Qwen3-8B", None)],
)
def test_task_follows_from_the_class(name: str, task: str | None, tmp_path: Path) -> None:
    application, _ = init(tmp_path, model_folder(tmp_path, name), "--gpu", "h100")
    assert model_of(application).get("task") == task


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("sentence_bert_config.json", {"max_seq_length": 8192}),
        ("tokenizer_config.json", {"model_max_length": 8192}),
    ],
)
def test_context_of_an_encoder_is_that_of_its_tokenizer(
    file: str, content: dict[str, int], tmp_path: Path
) -> None:
    path = model_folder(tmp_path, "BAAI/bge-m3", position_embedding_type="absolute")
    (Path(path) / file).write_text(json.dumps(content))
    application, text = init(tmp_path, path, "--gpu", "l4")
    assert model_of(application)["max_model_len"] == 8192
    assert "the model's own is 8,192" in text


def test_own_code_is_named_and_not_trusted(tmp_path: Path) -> None:
    path = model_folder(tmp_path, "Qwen/Qwen3-8B", auto_map={"AutoConfig": "configuration_x.X"})
    application, text = init(tmp_path, path, "--gpu", "h100")
    assert model_of(application)["trust_remote_code"] is False
    assert "read configuration_x.py first" in text


def test_an_adapter_is_served_on_its_base(tmp_path: Path) -> None:
    application, text = init(tmp_path, str(embedded_adapter_path()), "--gpu", "cpu")
    assert model_of(application)["lora"] == {"max_rank": 8}
    knobs = application["deployments"][0]["user_config"]["autoscaling"]["tideserve-tiny"]
    assert knobs["adapters"] == {"tideserve-tiny-adapter": "embedded"}
    assert "as in the configuration" not in text


def test_an_adapter_with_the_name_of_its_base_gets_another(tmp_path: Path) -> None:
    base = model_folder(tmp_path, "Qwen/Qwen3-8B")
    adapter = tmp_path / "mine" / "Qwen3-8B"
    adapter.mkdir(parents=True)
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base, "r": 8}))
    application, _ = init(tmp_path, str(adapter), "--gpu", "h100")
    knobs = application["deployments"][0]["user_config"]["autoscaling"]["qwen3-8b"]
    assert knobs["adapters"] == {"qwen3-8b-adapter": str(adapter)}


@pytest.mark.parametrize(
    ("name", "gpu"),
    [("Qwen/Qwen3-8B", "l4"), ("meta-llama/Meta-Llama-3.1-70B", "h200"), ("Qwen/Qwen3-0.6B", "cpu")],
)
def test_values_of_the_chart_have_comments_and_install(name: str, gpu: str, tmp_path: Path) -> None:
    application, _ = init(
        tmp_path, model_folder(tmp_path, name), "--gpu", gpu, "--kubernetes", "--context", "4k"
    )
    file = tmp_path / "serve.values.yaml"
    text = file.read_text(encoding="utf-8")
    assert all("#" in line for line in text.splitlines())
    # Helm validates the values against the chart's schema.
    served = yaml.safe_load(ray_service(file)["spec"]["serveConfigV2"])["applications"][0]
    [model], own = served["args"]["models"], model_of(application)
    assert {key: model[key] for key in ("max_model_len", "max_num_seqs")} == {
        key: own[key] for key in ("max_model_len", "max_num_seqs")
    }


def test_names_of_models_leave_the_comments_of_other_lines(tmp_path: Path) -> None:
    folders = {name: tmp_path / name / name for name in ("host", "model")}
    for name, folder in folders.items():
        folder.parent.mkdir()
        Path(model_folder(folder.parent, "Qwen/Qwen3-8B")).rename(folder)
        _, text = init(tmp_path, str(folder), "--gpu", "h100", "--force")
        lines = {line.partition(" # ")[0].strip(): line.partition(" # ")[2] for line in text.splitlines()}
        assert lines["host: 127.0.0.1"].startswith("this machine only")
        assert "sequences for 50 users" in lines[f"{name}:"]


def test_text_of_a_model_stays_in_its_comment(tmp_path: Path) -> None:
    name = "X\n          trust_remote_code: true #"
    application, text = init(
        tmp_path, model_folder(tmp_path, "Qwen/Qwen3-8B", architectures=[name]), "--gpu", "h100"
    )
    assert "trust_remote_code" not in model_of(application)
    assert "X trust_remote_code: true" in text


def test_a_refused_configuration_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("mine")
    path = model_folder(tmp_path, "Qwen/Qwen3-8B", max_position_embeddings=8)
    assert main(["init", path, "--gpu", "h100", "--output", str(file), "--force"]) == 2
    assert file.read_text() == "mine"
    assert {each.name for each in tmp_path.iterdir()} == {"Qwen3-8B", "serve.yaml"}


def test_the_most_users_are_a_valid_configuration(tmp_path: Path) -> None:
    path = model_folder(tmp_path, "Qwen/Qwen3-8B")
    application, text = init(tmp_path, path, "--gpu", "h100", "--users", "9999999")
    knobs = application["deployments"][0]["user_config"]["autoscaling"]["qwen3-8b"]
    assert knobs["max_replicas"] == 10_000
    assert "of 9999999 users queue" in text


def test_a_context_beyond_the_models_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    application, _ = init(
        tmp_path, model_folder(tmp_path, "Qwen/Qwen3-8B"), "--gpu", "h100", "--context", "1m"
    )
    assert model_of(application)["max_model_len"] == 40_960
    assert "has 40,960 tokens of context at most" in capsys.readouterr().err


def test_a_target_is_longer_than_the_prefill(tmp_path: Path) -> None:
    path = model_folder(tmp_path, "mistralai/Mamba-Codestral-7B-v0.1")
    application, text = init(tmp_path, path, "--gpu", "a10g", "--context", "4m", "--users", "1")
    [knobs] = application["deployments"][0]["user_config"]["autoscaling"].values()
    takes_s = int(re.findall(r"a prompt of .* tokens takes (\d+) ms", text)[0]) / 1000
    assert knobs["ttft_target_s"] >= 1.25 * takes_s > 30


def test_memory_of_a_container_is_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ray._private.utils.get_system_memory", lambda: 4 * GIB)
    path = model_folder(tmp_path, "Qwen/Qwen3-0.6B")
    assert main(["init", path, "--gpu", "cpu", "--output", str(tmp_path / "serve.yaml")]) == 1
    assert "vLLM may take 2.8 GiB" in capsys.readouterr().err


def test_check_reminds_of_the_price(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    init(tmp_path, "embedded", "--gpu", "cpu")
    assert main(["check", str(tmp_path / "serve.yaml")]) == 0
    assert "no price in gpu_hour_prices for tideserve-tiny" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("MODEL", "--gpu", "l4", "--gpus", "1"), r"131\.4 GiB of weights .* What would: --gpu l4 --gpus 8"),
        (("/no/such", "--gpu", "l4"), "/no/such: no such folder"),
        (("embedded", "--gpu", "cpu", "--gpus", "2"), "no GPU is found here"),
        (("embedded", "--gpu", "cpu", "--context", "4k", "--output", "TAKEN"), "exists; name another"),
        (("BROKEN", "--gpu", "l4"), "config.json: layer_types has 'quantum'"),
        (("embedded", "--gpu", "cpu", "--output", "/no/such/serve.yaml"), "serve.yaml: No such file"),
        (("embedded", "--gpu", "cpu", "--output", "/"), "/: exists; name another"),
        (("embedded", "--gpu", "cpu", "--output", "/", "--force"), "/: Is a directory"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_says_why(
    arguments: tuple[str, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "taken.yaml"
    taken.write_text("")
    names = {
        "MODEL": model_folder(tmp_path, "meta-llama/Meta-Llama-3.1-70B"),
        "BROKEN": model_folder(tmp_path, "Qwen/Qwen3-8B", layer_types=["quantum"]),
        "TAKEN": str(taken),
    }
    output = () if "--output" in arguments else ("--output", str(tmp_path / "new.yaml"))
    assert main(["init", *(names.get(each, each) for each in arguments), *output]) == 1
    assert re.search(words, capsys.readouterr().err)
    assert not (tmp_path / "new.yaml").exists()


@pytest.mark.parametrize(
    "arguments", [("--gpu", "tpu"), ("--gpus", "0"), ("--context", "long"), ("--users", "-1")]
)
def test_invalid_command_lines_name_the_value(
    arguments: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["init", "embedded", *arguments])
    assert arguments[1] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "kind", "gib", "expected"),
    [
        ("NVIDIA A100-SXM4-40GB", "A100", 39.4, GPUS["a100-40gb"]),
        ("NVIDIA A100-SXM4-80GB", "A100", 79.1, GPUS["a100-80gb"]),
        ("NVIDIA GeForce RTX 4090", "G", 23.6, GPUS["rtx4090"]),
        ("NVIDIA X9000", "X9000", 48.0, GpuKind("X9000", 48.0)),
    ],
)
def test_gpus_of_this_machine_are_recognised(name: str, kind: str, gib: float, expected: GpuKind) -> None:
    gpu = Gpu(f"GPU 0 ({name})", kind, int(gib * GIB), int(gib * GIB))
    assert gpus_of(Driver("580.65.06", (gpu, gpu))) == (expected, 2, f"GPU 0 ({name}) here")
    assert gpus_of(None) is None


def test_gpus_of_a_cluster_are_counted_by_kind() -> None:
    a100 = {"GPU": 8.0, "accelerator_type:A100": 1.0, "accelerator_type:A100-80G": 1.0}
    nodes = [{"CPU": 8.0}, a100, a100, {"GPU": 4.0, "accelerator_type:L4": 1.0}]
    assert gpus_of_nodes(nodes) == (GPUS["a100-80gb"], 16, "16 x A100-80G in the cluster")
    assert gpus_of_nodes([{"CPU": 8.0}]) is None
    with pytest.raises(CommandError, match="'X9000' are not in the table"):
        gpus_of_nodes([{"GPU": 1.0, "accelerator_type:X9000": 1.0}])


def test_every_kind_of_gpu_has_a_name_of_ray_or_none() -> None:
    from ray.util.accelerators import accelerators

    known = {value for name, value in vars(accelerators).items() if name.isupper()}
    assert {(kind.ray_name or "A100").partition("-")[0] for kind in GPUS.values()} <= known


def test_embedded_model_has_a_context_of_its_own(tmp_path: Path) -> None:
    application, _ = init(tmp_path, "embedded", "--gpu", "cpu")
    longest = json.loads((embedded_model_path() / "config.json").read_text())["max_position_embeddings"]
    assert model_of(application)["max_model_len"] == longest
