"""Facts of a model's files: of folders, adapters and repositories of a hub in this process."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import close_session, constants

from serve_app.weights import embedded_adapter_path, embedded_model_path
from serve_app.weights.model_files import ModelFilesError, read_model
from tests.weights.fake_hub import FakeHub

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16"}
INDEX = b'{"metadata": {"total_size": 15231233024}, "weight_map": {"a": "model-1.safetensors"}}'
CARD = b"---\nlanguage: en\nlicense: apache-2.0\n---\n# A model\n"
REPOSITORY = {
    "config.json": json.dumps(CONFIG).encode(),
    "model.safetensors.index.json": INDEX,
    "model-1.safetensors": b"1" * 100,
    "tokenizer_config.json": b'{"chat_template": "<tool_call>"}',
    "README.md": CARD,
}


def safetensors(dtype: str, size: int) -> bytes:
    header = json.dumps({"a": {"dtype": dtype, "shape": [size], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(size)


def folder(path: Path, files: dict[str, bytes]) -> str:
    for name, content in files.items():
        (path / name).write_bytes(content)
    return str(path)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    fake = FakeHub({"org/model": REPOSITORY, "org/gated": REPOSITORY}, frozenset({"org/gated"}))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    close_session()
    with fake.serving() as address:
        monkeypatch.setattr(constants, "ENDPOINT", address)
        template = address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield fake
    close_session()


def test_embedded_model_is_read_from_the_package() -> None:
    found = read_model("embedded")
    weights = (embedded_model_path() / "model.safetensors").stat().st_size
    assert 0.99 * weights < found.weights < weights
    assert (found.model, found.licence, found.own_code) == ("embedded", "apache-2.0", ())
    assert found.chat_template is not None


def test_adapter_leads_to_its_base(tmp_path: Path) -> None:
    assert read_model(str(embedded_adapter_path())).adapter == ("embedded", 8)
    base = tmp_path / "base"
    base.mkdir()
    folder(base, REPOSITORY)
    given = {"base_model_name_or_path": str(base), "r": 32}
    found = read_model(folder(tmp_path, {"adapter_config.json": json.dumps(given).encode()}))
    assert (found.model, found.adapter) == (str(base), (str(tmp_path), 32))


def test_repository_is_read_without_its_weights(hub: FakeHub) -> None:
    found = read_model("org/model")
    assert (found.model, found.weights, found.licence) == ("org/model", 15231233024, "apache-2.0")
    assert found.chat_template == "<tool_call>"
    assert "model-1.safetensors" not in hub.sent


def test_repository_without_an_index_counts_its_files(hub: FakeHub) -> None:
    hub.repositories["org/single"] = {
        "config.json": REPOSITORY["config.json"],
        "model.safetensors": b"1" * 64,
    }
    assert read_model("org/single").weights == 64


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("org/gated", "gated: accept the licence at https://huggingface.co/org/gated, and set HF_TOKEN"),
        ("org/unknown", "no such repository"),
        ("qwen", "no such folder"),
        ("/no/such/folder", "no such folder"),
    ],
)
@pytest.mark.usefixtures("hub")
def test_names_that_give_nothing_say_why(name: str, words: str) -> None:
    with pytest.raises(ModelFilesError, match=words):
        read_model(name)


def test_unreachable_hub_asks_for_a_folder(hub: FakeHub) -> None:
    hub.broken = True
    with pytest.raises(
        ModelFilesError, match=r"org/model: the hub does not answer .*give a folder with config"
    ):
        read_model("org/model")


def test_a_check_asks_no_hub(hub: FakeHub) -> None:
    with pytest.raises(ModelFilesError, match="not on this machine"):
        read_model("org/model", ask_hub=False)
    assert hub.sent == []


@pytest.mark.usefixtures("hub")
def test_a_revision_has_its_own_files(tmp_path: Path) -> None:
    for revision, dtype in (("main", "BF16"), ("small", "F32")):
        snapshot = tmp_path / "models--org--model" / "snapshots" / f"commit-{revision}"
        snapshot.mkdir(parents=True)
        folder(snapshot, {"config.json": b"{}", "model.safetensors": safetensors(dtype, 4096)})
        refs = tmp_path / "models--org--model" / "refs"
        refs.mkdir(exist_ok=True)
        (refs / revision).write_text(f"commit-{revision}")
    sizes = [read_model("org/model", ask_hub=False, revision=each).weights for each in (None, "small")]
    assert sizes == [4096, 2048]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "config.json: no such file"),
        ({"config.json": b"{"}, "config.json: not valid JSON"),
        ({"config.json": b"[]"}, "config.json: must be a JSON object, and is a list"),
        ({"config.json": b"{}"}, "neither model.safetensors.index.json nor weights"),
        (
            {"config.json": b"{}", "model.safetensors": b"\x05" + bytes(7) + b"hello"},
            "header: not valid JSON",
        ),
        ({"config.json": b"{}", "model.safetensors.index.json": b'{"metadata": 3}'}, "unknown form"),
        ({"adapter_config.json": b'{"r": "8"}'}, "base_model_name_or_path = None, r = '8'"),
        (
            {"config.json": b"{}", "model.safetensors.index.json": b'{"metadata": {"total_size": "x"}}'},
            "unknown form: ValueError",
        ),
        (
            {"config.json": b"{}", "model.safetensors.index.json": b'{"metadata": {"total_size": -5}}'},
            "-5 bytes of weights",
        ),
        ({"config.json": b"{}", "pytorch_model.bin": b""}, "0 bytes of weights"),
        (
            {**REPOSITORY, "chat_template.jinja": b"\xff"},
            "unknown form: UnicodeDecodeError",
        ),
    ],
)
def test_broken_folders_name_the_file(files: dict[str, bytes], words: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match=words):
        read_model(folder(tmp_path, files))


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ModelFilesError, match=r"config\.json: Is a directory"):
        read_model(str(tmp_path))


@pytest.mark.parametrize(("dtype", "counted"), [("BF16", 4096), ("F32", 2048)])
def test_float32_weights_count_half(dtype: str, counted: int, tmp_path: Path) -> None:
    files = {"config.json": json.dumps(CONFIG).encode(), "model.safetensors": safetensors(dtype, 4096)}
    assert read_model(folder(tmp_path, files)).weights == counted


@pytest.mark.parametrize(
    ("extra", "field", "value"),
    [
        ({"modules.json": b"[]"}, "is_embedding", True),
        ({"chat_template.jinja": b"jinja"}, "chat_template", "jinja"),
        (
            {"config.json": json.dumps({**CONFIG, "auto_map": {"AutoConfig": "configuration_x.X"}}).encode()},
            "own_code",
            ("configuration_x.py",),
        ),
    ],
)
def test_other_files_tell_of_the_model(
    extra: dict[str, bytes], field: str, value: Any, tmp_path: Path
) -> None:
    assert getattr(read_model(folder(tmp_path, {**REPOSITORY, **extra})), field) == value
