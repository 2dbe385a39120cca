"""Lock files pin every package to one version and to its files."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kubernetes.tools import PROJECT
from tools.supply_chain.locks import IMAGES, LOCKS, Locked, lock_file, parse_lock, read_lock

SET_UP = ("Makefile", "requirements/install.sh", *(f"k8s/images/{image}.Dockerfile" for image in IMAGES))


def test_every_lock_pins_versions_and_hashes_and_there_is_no_other() -> None:
    for lock in LOCKS:
        packages = read_lock(lock)
        assert packages
        assert len({package.name for package in packages}) == len(packages)
    others = {path.stem for path in lock_file("cpu").parent.glob("*.txt")} - set(LOCKS)
    assert {name for name in others if not name.endswith(".overrides")} == set()


def test_hashes_are_read_over_continued_lines() -> None:
    text = f"# why\nA.b==1.0+cpu \\\n    --hash=sha256:{'0' * 64} \\\n    --hash=sha256:{'1' * 64}\n"
    assert list(parse_lock(text)) == [Locked("a-b", "1.0+cpu", frozenset({"0" * 64, "1" * 64}))]


@pytest.mark.parametrize(
    "line", ["a", "a>=1", "a==1.*", "a==1", "a==1 --hash=md5:0", f"a==1 --hash=sha256:{'0' * 63}"]
)
def test_a_line_without_version_or_hash_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="a lock "):
        list(parse_lock(line))


@pytest.mark.parametrize("file", SET_UP)
def test_whatever_installs_a_lock_asks_for_its_hashes(file: str) -> None:
    text = re.sub(r"\\\n", " ", (PROJECT / file).read_text())
    required = {"$(PIP_INSTALL)", '"${locked[@]}"', "--require-hashes"}
    installs = [
        line
        for line in text.splitlines()
        if re.search(r"(-r|--requirement) |\"\$\{locked\[@\]\}\"", line) and "locked=" not in line
    ]
    assert installs
    assert [line for line in installs if not any(each in line for each in required)] == []


def test_torch_is_locked_for_both_versions_of_python() -> None:
    """Resolved from a folder with one wheel, the lock has one hash, and set-up with 3.12 fails."""
    torch = next(package for package in read_lock("cpu") if package.name == "torch")
    assert torch.version.endswith("+cpu")
    assert len(torch.hashes) >= 2


def test_the_gpu_sets_compiler_and_headers_are_of_one_cuda_release() -> None:
    versions = {package.name: package.version for package in read_lock("gpu")}
    toolkit = {"nvcc", "crt", "runtime", "nvrtc", "cccl"}
    releases = {versions[f"nvidia-cuda-{part}"].rsplit(".", 1)[0] for part in toolkit}
    assert releases == {versions["nvidia-nvvm"].rsplit(".", 1)[0]}
    assert versions["cuda-toolkit"].startswith(f"{releases.pop()}.")


def test_a_file_that_was_not_locked_is_not_installed(tmp_path: Path) -> None:
    """As pip does it with the options of set-up: the wheel is there, its hash is another."""
    (tmp_path / "demo-1.0-py3-none-any.whl").write_bytes(b"not what was locked")
    lock = tmp_path / "lock.txt"
    lock.write_text(f"demo==1.0 --hash=sha256:{'0' * 64}\n")
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--find-links", str(tmp_path)]
    options = ["--no-deps", "--require-hashes", "--target", str(tmp_path / "site"), "-r", str(lock)]
    done = subprocess.run([*pip, *options], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
