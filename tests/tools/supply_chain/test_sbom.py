"""A bill of materials names what the locks and the Dockerfile put into an image, and is valid CycloneDX."""

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
from tools.supply_chain.locks import IMAGES, lock_file, read_lock
from tools.supply_chain.sbom import build_bom, read_debian_packages, read_dockerfile, render

DIGEST = "sha256:" + "ab" * 32
BASE = f"docker.io/library/debian:bookworm-slim@{DIGEST}"


@cache
def document(image: str, base: str = BASE, **debian: str | None) -> dict[str, Any]:
    text = render(build_bom(image, read_list(), base, debian))
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    found: dict[str, Any] = json.loads(text)
    return found


def of_kind(bom: dict[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    return {p["name"]: p for p in bom["components"] if p.get("purl", "").startswith(f"pkg:{kind}/")}


@pytest.mark.parametrize("image", IMAGES)
def test_every_part_of_an_image_is_in_it(image: str) -> None:
    bom = document(image, bash="5.2.15-2+b9")
    parts, locked = of_kind(bom, "pypi"), read_lock(lock_file(image))
    assert set(parts) == {package.name for package in locked} | {"tideserve"}
    for package in locked:
        part = parts[package.name]
        assert part["version"] == package.version
        assert part["hashes"][0]["content"] in package.hashes
        assert part["licenses"]
    assert of_kind(bom, "deb")["bash"]["version"] == "5.2.15-2+b9"
    [base] = of_kind(bom, "oci").values()
    assert (base["version"], base["hashes"]) == (DIGEST, [{"alg": "SHA-256", "content": "ab" * 32}])
    whole = bom["metadata"]["component"]
    assert (whole["type"], whole["name"]) == ("container", f"tideserve-{image}")
    [edges] = [each["dependsOn"] for each in bom["dependencies"] if each["ref"] == whole["bom-ref"]]
    assert set(edges) == {part["bom-ref"] for part in bom["components"]}


def test_a_base_without_a_digest_has_none() -> None:
    bom = document("cpu", base="localhost:5000/debian")
    [base] = [part for part in bom["components"] if part["type"] == "container"]
    assert of_kind(bom, "oci") == {}
    assert (base["name"], base.get("version"), base.get("hashes")) == ("localhost:5000/debian", None, None)


def test_the_same_input_gives_the_same_document_and_serial_number() -> None:
    assert document("cpu") == document.__wrapped__("cpu")
    assert "timestamp" not in document("cpu")["metadata"]
    assert document("cpu")["serialNumber"] != document("cpu", base="debian:12")["serialNumber"]


def test_the_dockerfile_names_the_base_and_the_debian_packages() -> None:
    base, packages = read_dockerfile("gpu")
    assert base.partition(":")[0] == "docker.io/library/debian"
    assert {"bash", "libnuma1", "wget", "g++", "python3-dev"} <= set(packages)
    assert not {word for word in packages if word.startswith(("-", "$"))}


def test_dpkg_prints_a_package_and_its_version_a_line() -> None:
    assert read_debian_packages("libc6:amd64\t2.36-9+deb12u13\n") == {"libc6": "2.36-9+deb12u13"}
    with pytest.raises(ValueError, match="line 2 of the Debian packages: 'a b c'"):
        read_debian_packages("a 1\na b c\n")


def test_the_command_writes_a_document_for_each_image(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.supply_chain.sbom", "--out", str(tmp_path)]
    subprocess.run(command, check=True, cwd=PROJECT, capture_output=True)
    assert {path.name for path in tmp_path.iterdir()} == {f"{image}.cdx.json" for image in IMAGES}
