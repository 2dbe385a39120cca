"""Which files are loaded: those that vLLM would load itself, once."""

from __future__ import annotations

from serve_app.weights.hub_files import INDEX, tokenizer_files, weight_files


def test_of_indexed_safetensors_those_in_the_index_are_taken() -> None:
    names = ["a-1.safetensors", "a-2.safetensors", "adapter.safetensors", INDEX, "pytorch_model.bin"]
    assert weight_files(names, ["a-1.safetensors", "a-2.safetensors"]) == names[:2]


def test_pickles_are_left_where_there_are_safetensors() -> None:
    names = ["pytorch_model.bin", "model.safetensors", "original/consolidated.00.pth", "model.pt"]
    assert weight_files(names, []) == ["model.safetensors"]


def test_pickles_are_taken_where_there_is_nothing_else() -> None:
    assert weight_files(["pytorch_model.bin", "tf_model.h5"], []) == ["pytorch_model.bin"]


def test_a_kind_that_is_only_in_subfolders_does_not_count() -> None:
    assert weight_files(["onnx/model.safetensors", "pytorch_model.bin"], []) == ["pytorch_model.bin"]


def test_mistrals_own_format_wins() -> None:
    names = ["consolidated.safetensors", "model-1.safetensors", INDEX]
    assert weight_files(names, ["model-1.safetensors"]) == ["consolidated.safetensors"]


def test_no_weights_are_an_empty_list() -> None:
    assert weight_files(["model.onnx", "config.json"], []) == []


def test_what_is_beside_the_weights_is_configurations_tokenizers_templates_and_code() -> None:
    wanted = [
        "config.json",
        "tokenizer.model.v3",
        "merges.txt",
        "qwen.tiktoken",
        "chat_template.jinja",
        "modeling.py",
    ]
    names = [*wanted, "README.md", "model.safetensors", "original/params.json", "picture.png"]
    assert tokenizer_files(names) == wanted
