"""What `tideserve init` writes for tiny models of three families is checked, served and answers."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import openai
import pytest
import yaml

from serve_app.cli.main import main
from tests.integration.cluster import Running

pytestmark = pytest.mark.long

WRITE_MODEL = """
import pathlib, sys
from tests.engine.tiny_models import decoder
decoder(pathlib.Path(sys.argv[2]), sys.argv[1])
"""


def written(model: str, folder: Path) -> dict[str, Any]:
    """The document that `init` writes for the CPU and `check` accepts."""
    file = folder / f"{Path(model).name}.yaml"
    assert main(["init", model, "--gpu", "cpu", "--users", "8", "--output", str(file)]) == 0
    assert main(["check", str(file)]) == 0
    document: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return document


@pytest.mark.parametrize("kind", ["embedded", "qwen3", "gemma3_text"])
def test_a_written_configuration_is_served_and_answers(kind: str, tmp_path: Path) -> None:
    model = kind
    if kind != "embedded":  # a process of its own, because torch's threads would stay
        model = str(tmp_path / kind)
        subprocess.run([sys.executable, "-c", WRITE_MODEL, kind, model], check=True)
    document = written(model, tmp_path)
    [settings] = document["applications"][0]["args"]["models"]
    with Running(document).serving() as running:
        with openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
            answer = client.chat.completions.create(
                model=settings["name"], messages=[{"role": "user", "content": "Hello."}], max_tokens=8
            )
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0
