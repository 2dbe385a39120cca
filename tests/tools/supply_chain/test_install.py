"""`requirements/install.sh` with stand-ins for Python, pip and uv, which note how they were called."""

import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from tools.supply_chain.locks import REQUIREMENTS

PYTHON = """#!/bin/sh
case $1 in
-c) echo 3.11 ;;
-m) [ "$2" != venv ] || { mkdir -p .venv/bin && cp stand-ins/pip stand-ins/python .venv/bin; } ;;
esac
"""
PIP = """#!/bin/bash
for last; do :; done
given=$(cat "$last" 2>/dev/null)
echo "pip $* asked for $(grep -c == <<<"$given")" >>calls
case ${given:0:6} in
torch=) [ -n "$INDEX_HAS_TORCH" ] || { echo 'No matching distribution' >&2; exit 1; } ;;
uv==0.) cp stand-ins/uv .venv/bin ;;
esac
"""
UV = """#!/bin/bash
for last; do :; done
echo "uv $* asked for $(head -n 1 "$last")" >>calls
exit ${UV_STATUS:-0}
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with `requirements/` and the stand-ins."""
    shutil.copytree(REQUIREMENTS, tmp_path / "requirements")
    folder = tmp_path / "stand-ins"
    folder.mkdir()
    for name, text in {"python": PYTHON, "pip": PIP, "uv": UV}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(stat.S_IRWXU)
    return tmp_path


def install(checkout: Path, **environment: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """What the script printed, and its calls of pip and uv."""
    done = subprocess.run(
        ["requirements/install.sh", "stand-ins/python"],
        cwd=checkout,
        env={"PATH": "/usr/bin:/bin", **environment},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done, (checkout / "calls").read_text().splitlines()


def test_a_cpu_torch_of_the_configured_index_is_installed(checkout: Path) -> None:
    done, calls = install(checkout, INDEX_HAS_TORCH="1")

    assert (done.returncode, done.stderr) == (0, "")
    assert not any(call.startswith("uv ") or "uv.txt" in call for call in calls)


def test_without_it_uv_installs_torch_from_pytorchs_index(checkout: Path) -> None:
    done, calls = install(checkout)

    assert (done.returncode, done.stderr) == (0, "")
    [call] = [call for call in calls if call.startswith("uv ")]
    assert "--torch-backend cpu --no-deps --require-hashes" in call
    assert call.endswith("+cpu \\")
    assert any("--require-hashes -r requirements/uv.txt" in call for call in calls)
    locked = (REQUIREMENTS / "cpu.txt").read_text().count("==")
    assert any("--require-hashes" in call and call.endswith(f" asked for {locked - 1}") for call in calls)


def test_without_both_it_stops_with_the_error_of_pip(checkout: Path) -> None:
    done, calls = install(checkout, UV_STATUS="2")

    assert done.returncode == 1
    assert "No matching distribution" in done.stderr
    assert "set PIP_EXTRA_INDEX_URL" in done.stderr
    assert not any("--editable" in call for call in calls)
