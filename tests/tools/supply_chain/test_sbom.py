"""A bill of materials says what the locks and the Dockerfile put into an image, and is valid CycloneDX."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.kubernetes.tools import PROJECT
from tools.supply_chain.inventory import read_list
from tools.supply_chain.locks import IMAGES, read_lock
from tools.supply_chain.sbom import build_bom, dockerfile, read_debian_packages, render

DIGEST = "sha256:" + "ab" * 32
BASE = f"docker.io/library/debian:bookworm-slim@{DIGEST}"


def text_of(image: str, base: str = BASE, debian: str = "") -> str:
    return render(build_bom(image, read_list(), dockerfile(image), base, read_debian_packages(debian)))


@cache
def document(image: str, base: str = BASE, debian: str = "") -> dict[str, Any]:
    text = text_of(image, base, debian)
    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    assert error is None, error
    found: dict[str, Any] = json.loads(text)
    return found


def of_kind(bom: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [part for part in bom["components"] if part.get("purl", "").startswith(f"pkg:{kind}/")]


@pytest.mark.parametrize("image", IMAGES)
def test_every_locked_package_is_in_it_with_version_hash_and_license(image: str) -> None:
    bom = document(image)
    parts = {part["name"]: part for part in of_kind(bom, "pypi")}
    locked = read_lock(image)
    assert set(parts) == {package.name for package in locked} | {"tideserve"}
    for package in locked:
        part = parts[package.name]
        assert part["version"] == package.version
        assert [each["alg"] for each in part["hashes"]] == ["SHA-256"]
        assert part["hashes"][0]["content"] in package.hashes
        assert part["licenses"]


@pytest.mark.parametrize("image", IMAGES)
def test_the_debian_packages_of_the_dockerfile_and_the_base_are_in_it(image: str) -> None:
    bom = document(image)
    names = {part["name"] for part in of_kind(bom, "deb")}
    assert names == dockerfile(image).default.installed
    assert "libnuma1" in names
    (base,) = of_kind(bom, "oci")
    assert base["version"] == DIGEST
    assert base["hashes"] == [{"alg": "SHA-256", "content": "ab" * 32}]


def test_a_built_images_debian_packages_have_versions() -> None:
    bom = document("cpu", debian="bash\t5.2.15-2+b9\nlibc6:amd64\t2.36-9+deb12u13\n")
    found = {part["name"]: part["version"] for part in of_kind(bom, "deb")}
    assert found == {"bash": "5.2.15-2+b9", "libc6": "2.36-9+deb12u13"}


def test_a_line_that_is_not_a_package_and_a_version_is_refused() -> None:
    with pytest.raises(ValueError, match="line 2 of the Debian packages: 'a b c'"):
        read_debian_packages("a 1\na b c\n")


def test_a_base_without_a_digest_has_none() -> None:
    bom = document("cpu", base="localhost:5000/debian")
    assert of_kind(bom, "oci") == []
    (base,) = [part for part in bom["components"] if part["type"] == "container"]
    assert (base["name"], base.get("version"), base.get("hashes")) == ("localhost:5000/debian", None, None)


def test_the_same_input_gives_the_same_document_and_other_input_another_serial_number() -> None:
    assert text_of("cpu") == text_of("cpu")
    assert "timestamp" not in document("cpu")["metadata"]
    assert document("cpu")["serialNumber"] != document("cpu", base="debian:12")["serialNumber"]


def test_the_image_depends_on_every_part() -> None:
    bom = document("gpu")
    whole = bom["metadata"]["component"]
    assert (whole["type"], whole["name"]) == ("container", "tideserve-gpu")
    (edges,) = [each["dependsOn"] for each in bom["dependencies"] if each["ref"] == whole["bom-ref"]]
    assert set(edges) == {part["bom-ref"] for part in bom["components"]}


def test_the_command_writes_a_document_for_each_image(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.supply_chain.sbom", "--out", str(tmp_path)]
    subprocess.run(command, check=True, cwd=PROJECT, capture_output=True, timeout=60)
    assert {path.name for path in tmp_path.iterdir()} == {f"{image}.cdx.json" for image in IMAGES}
