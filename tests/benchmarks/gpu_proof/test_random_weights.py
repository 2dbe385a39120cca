import json

import pytest
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.gpu_proof.random_weights import AWQ, SHAPES, make, parameters


@pytest.mark.parametrize(
    ("shape", "published"), [("llama-3.1-8b", 8.030e9), ("llama-3.2-3b", 3.213e9), ("llama-3.2-1b", 1.236e9)]
)
def test_a_shape_has_as_many_weights_as_the_published_model(shape: str, published: float) -> None:
    assert parameters(shape) == pytest.approx(published, rel=5e-4)


def test_a_written_checkpoint_is_what_transformers_loads(tmp_path) -> None:
    folder = make("tiny", tmp_path, checkpoint=True)
    model = AutoModelForCausalLM.from_pretrained(folder)

    assert sum(weights.numel() for weights in model.parameters()) == parameters("tiny")
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    with safe_open(folder / index["model.embed_tokens.weight"], framework="pt") as file:
        weights = file.get_tensor("model.embed_tokens.weight").float()
    assert weights.std().item() == pytest.approx(0.02, rel=0.02)


def test_without_weights_there_is_a_configuration_and_a_tokenizer(tmp_path) -> None:
    folder = make("llama-3.1-8b", tmp_path)

    assert AutoConfig.from_pretrained(folder).num_hidden_layers == 32
    assert (folder / "tokenizer.json").exists()
    assert not list(folder.glob("*.safetensors"))


def test_what_is_there_is_kept_and_what_was_cut_off_is_made_anew(tmp_path) -> None:
    (tmp_path / "tiny.part").mkdir()
    folder = make("tiny", tmp_path)
    before = (folder / "config.json").stat().st_mtime_ns

    assert make("tiny", tmp_path) == folder
    assert (folder / "config.json").stat().st_mtime_ns == before
    assert not (tmp_path / "tiny.part").exists()


def test_weights_that_do_not_fit_are_refused_before_the_first_byte(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1e9}))
    with pytest.raises(OSError, match=r"16\.1 GB of weights do not fit into 1\.0 GB"):
        make("llama-3.1-8b", tmp_path, checkpoint=True)


def test_every_shape_s_tokens_are_in_the_tokenizer_s_vocabulary() -> None:
    assert all(shape["vocab_size"] >= 2048 for shape in SHAPES.values())


def test_weights_of_four_bits_are_another_model(tmp_path) -> None:
    plain, quantized = make("tiny", tmp_path), make("tiny", tmp_path, awq=True)
    assert json.loads((quantized / "config.json").read_text()) == {
        **json.loads((plain / "config.json").read_text()),
        "quantization_config": AWQ,
    }
