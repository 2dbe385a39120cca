"""The documents' Python and `curl` run as they stand, against a real server."""

import json
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.integration.cluster import Running
from tests.markdown import blocks, shell_commands
from tests.speech_files import tone
from tests.test_documents import DOCUMENTS, PROJECT

_PAGE, _ADDRESS = "docs/api.md", "http://127.0.0.1:8000"
_NOT_RUN = {
    (_PAGE, "/v1/rerank"): "the server has no reranker",
    (_PAGE, "/v1/chat/completions"): "the server has no adapter",
    (_PAGE, "/autoscaling/knobs"): "it would change the server for later tests",
    ("docs/kubernetes.md", "/v1/chat/completions"): "the server has not the model of the chart's example",
}
"""Blocks with `curl` that cannot run here, with the reason. Their paths are compared with the server's."""


def _blocks(language: str, part: str = "") -> list[tuple[str, str]]:
    """The documents' blocks in a language, each with the name of its page."""
    return [
        (str(page.relative_to(PROJECT)), block)
        for page in DOCUMENTS
        for block in blocks(page, language)
        if part in block
    ]


@pytest.mark.parametrize(("page", "block"), _blocks("python"), ids=lambda each: each[:12])
def test_python_runs_as_it_stands(
    app: Running,
    page: str,
    block: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (line,) = (each for each in blocks(PROJECT / _PAGE, "json") if '"custom_id"' in each)
    Path("requests.jsonl").write_text(line)
    assert block.count(_ADDRESS) == 1
    here = block.replace(_ADDRESS, app.url).replace("time.sleep(5)", "time.sleep(0.2)")
    exec(compile(here, page, "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    if "batches" in block:
        assert json.loads(printed)["response"]["status_code"] == 200
    else:
        assert len(printed.split()) > 5


def test_paths_of_curl_are_endpoints_and_its_bodies_are_accepted(
    app: Running, http: httpx.Client, tmp_path: Path
) -> None:
    (tmp_path / "speech.mp3").write_bytes(tone(440, kind="MP3"))
    paths = http.get("/openapi.json").json()["paths"]
    found, run = set(), 0
    for page, block in _blocks("", "curl "):
        for words in shell_commands(block):
            if words[0] != "curl":
                continue
            (url,) = (httpx.URL(word) for word in words if word.startswith("http://"))
            method = "post" if {"-d", "-F"} & set(words) else "get"
            assert method in paths[url.path], words
            if (page, url.path) in _NOT_RUN:
                found.add((page, url.path))
                continue
            done = subprocess.run(
                [*words[:1], "--fail-with-body", *(word.replace(_ADDRESS, app.url) for word in words[1:])],
                cwd=tmp_path,
                capture_output=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, done.stdout
            run += 1
    assert found == set(_NOT_RUN)
    assert run >= 3
