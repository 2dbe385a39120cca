"""The list of what the engine relies on, against the installed vLLM's sources and against made-up ones."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tools import vllm_releases
from tools.vllm_releases import Release, main


def installed() -> Path:
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parents[1]


def test_the_installed_vllm_has_everything() -> None:
    release = Release(installed())

    assert list(release.problems()) == []
    assert list(release.lacking()) == []


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sources of a release, and an engine that needs a call, an override, fields and two handlers of it."""
    files = {
        "_version.py": "__version__ = version = '0.99.1+cpu'",
        "new/engine.py": (
            "from ..base import Base\nclass Engine(Base):\n    def run(self, prompt, seed=0): ...\n"
        ),
        "base.py": (
            "class Base:\n    port: int = 1\n"
            "    def __init__(self):\n        self.queue = []\n"
            "    def record(self, step, *, core=0): ...\n"
        ),
        "exports.py": "from vllm.new.engine import Engine as Core\n",
        "entrypoints/state.py": "state.chat = 1\nstate.embedding_of = 2\n",
    }
    for name, text in files.items():
        path = tmp_path / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    places = {"Engine": ("vllm.newest", "vllm.new.engine"), "Core": ("vllm.exports",)}
    monkeypatch.setattr(vllm_releases, "places", lambda: places)
    tables = {
        "CALLED": {"Engine.run": "prompt", "Core.run": "prompt seed"},
        "REPLACED": {"Engine.record": "step core"},
        "MEMBERS": {"Core": "port queue record", "vllm.base.Base": ""},
        "OPTIONAL": {},
    }
    for name, table in tables.items():
        monkeypatch.setattr(vllm_releases, name, table)
    monkeypatch.setattr(vllm_releases, "STATE", "chat")
    return tmp_path


def test_inherited_exported_and_moved_names_are_found(made_up: Path) -> None:
    assert list(Release(made_up).problems()) == []


@pytest.mark.parametrize(
    ("table", "entry", "problem"),
    [
        ("CALLED", ("Engine.run", "prompt params"), "Engine.run(prompt, seed), not (prompt, params)"),
        ("CALLED", ("Engine.run", "seed prompt"), "Engine.run(prompt, seed), not (seed, prompt)"),
        ("CALLED", ("Engine.run", "seed"), "Engine.run(prompt, seed), not (seed)"),
        ("CALLED", ("Engine.abort", ""), "no Engine.abort()"),
        ("REPLACED", ("Engine.record", "step"), "Engine.record(step, core), not (step)"),
        ("MEMBERS", ("Engine", "port ports"), "no Engine.ports"),
        ("MEMBERS", ("vllm.base.Other", "port"), "no vllm.base.Other"),
    ],
)
def test_missing_and_changed_names_are_reported(
    made_up: Path, table: str, entry: tuple[str, str], problem: str
) -> None:
    getattr(vllm_releases, table)[entry[0]] = entry[1]

    assert list(Release(made_up).problems()) == [problem]


def test_a_name_in_none_of_its_modules_is_missing(made_up: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vllm_releases.places()["Engine"] = ("vllm.newest", "vllm.base")
    vllm_releases.CALLED.clear()
    vllm_releases.REPLACED.clear()
    monkeypatch.setattr(vllm_releases, "STATE", "embedding")

    assert list(Release(made_up).problems()) == [
        "no Engine in vllm.newest or vllm.base",
        "no state.embedding",
    ]


def test_a_line_for_each_release_and_a_status_for_all(
    made_up: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(made_up)]) == 0
    vllm_releases.OPTIONAL["Core"] = "speed"
    vllm_releases.MEMBERS["Core"] = "ports"

    assert main([str(made_up)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "vLLM 0.99.1: fits",
        "vLLM 0.99.1: no Core.ports (without: no Core.speed)",
    ]
