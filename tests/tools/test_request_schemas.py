"""The request schemas written down in the package are those of the installed vLLM."""

from tools import request_schemas


def test_the_file_matches_the_installed_vllm() -> None:
    assert request_schemas.FILE.read_text(encoding="utf-8") == request_schemas.text(), (
        "run `python -m tools.request_schemas` and look at what changed"
    )


def test_descriptions_are_left_out() -> None:
    schema = {
        "description": "vLLM's words",
        "properties": {
            "description": {"type": "string", "description": "vLLM's words"},
            "n": {"type": "integer", "examples": [1], "default": 1},
        },
        "anyOf": [{"type": "null", "description": "vLLM's words"}],
    }

    assert request_schemas._bare(schema) == {
        "properties": {"description": {"type": "string"}, "n": {"type": "integer", "default": 1}},
        "anyOf": [{"type": "null"}],
    }
