"""Which replicas may go on with each other's streams, by what their files hold."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from serve_app.settings.tree import ModelSettings
from serve_app.weights import model_identity as module
from serve_app.weights.model_identity import model_identity


def identity(folder: Path, **settings: Any) -> str:
    return model_identity(ModelSettings(**{"name": "chat", "model": str(folder), **settings}))


def made(folder: Path) -> Path:
    """A model's folder, with weights of which only samples are read."""
    folder.mkdir()
    (folder / "config.json").write_text('{"vocab_size": 2048}')
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 400)
    return folder


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WHOLE_BYTES", 4 << 10)
    monkeypatch.setattr(module, "SAMPLES", 16)
    monkeypatch.setattr(module, "SAMPLE_BYTES", 64)


def replaced(file: Path, change: Callable[[bytes], bytes]) -> None:
    """Replace a file by one of the same size and time."""
    times = file.stat()
    file.write_bytes(change(file.read_bytes()))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
def test_files_replaced_in_the_same_folder_are_another_model(tmp_path: Path, file: str) -> None:
    folder = made(tmp_path / "model")
    before = identity(folder)

    replaced(folder / file, lambda content: content[::-1])

    assert identity(folder) != before


def test_a_copy_on_another_node_is_the_same_model(tmp_path: Path) -> None:
    one, other = made(tmp_path / "one"), made(tmp_path / "other")
    os.utime(other / "model.safetensors", ns=(1, 1))
    (other / "README.md").write_text("read me")

    assert identity(one) == identity(other)


def test_the_ends_of_large_weights_count(tmp_path: Path) -> None:
    folder = made(tmp_path / "model")
    seen = {identity(folder)}
    for change in (lambda content: b"x" + content[1:], lambda content: content[:-1] + b"x"):
        replaced(folder / "model.safetensors", change)
        seen.add(identity(folder))

    assert len(seen) == 3


@pytest.mark.parametrize(
    ("settings", "same"),
    [
        ({"dtype": "float16"}, False),
        ({"quantization": "fp8"}, False),
        ({"reasoning_parser": "deepseek_r1"}, False),
        ({"engine_args": {"hf_overrides": {"rope_theta": 5.0}}}, False),
        ({"max_num_seqs": 7, "device": "cpu", "engine_args": {"hf_token": "secret"}}, True),
    ],
)
def test_only_settings_that_decide_the_tokens_count(
    tmp_path: Path, settings: dict[str, Any], same: bool
) -> None:
    folder = made(tmp_path / "model")
    assert (identity(folder, **settings) == identity(folder)) is same


def test_the_contents_of_tokenizer_and_chat_template_count(tmp_path: Path) -> None:
    folder, tokenizer = made(tmp_path / "model"), made(tmp_path / "tokenizer")
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages }}")
    settings = {"tokenizer": str(tokenizer), "chat_template": str(template)}
    seen = {identity(folder, **settings)}
    for file in (tokenizer / "tokenizer.json", template):
        replaced(file, lambda content: content[::-1])
        seen.add(identity(folder, **settings))

    assert len(seen) == 3


def test_a_hub_model_counts_by_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--org--chat"
    seen = set()
    for commit in ("1" * 40, "2" * 40):
        (repository / "snapshots" / commit).mkdir(parents=True)
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / "main").write_text(commit)
        seen.add(model_identity(ModelSettings(name="chat", model="org/chat")))

    assert len(seen) == 2
    assert identity(Path("org/absent")) == identity(Path("org/absent"))
