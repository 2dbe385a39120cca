"""The request schemas written down in the package are those of the installed vLLM."""

from __future__ import annotations

from serve_app.api.schemas import write


def test_the_file_is_in_step_with_the_installed_vllm() -> None:
    assert write.FILE.read_text(encoding="utf-8") == write.text(), (
        "run `python -m serve_app.api.schemas.write` and look at what changed"
    )


def test_prose_is_left_out_and_fields_that_are_called_like_prose_are_kept() -> None:
    schema = {
        "description": "vLLM's words",
        "properties": {
            "description": {"type": "string", "description": "vLLM's words"},
            "n": {"type": "integer", "examples": [1], "default": 1},
        },
        "anyOf": [{"type": "null", "description": "vLLM's words"}],
    }

    assert write._bare(schema) == {
        "properties": {"description": {"type": "string"}, "n": {"type": "integer", "default": 1}},
        "anyOf": [{"type": "null"}],
    }
