"""A CycloneDX bill of materials for each image: its base, Debian packages and Python packages.

`python -m tools.supply_chain.sbom --out build/sbom` writes what the repository decides. Only a built image
has a digest of its base and versions of its Debian packages. They are left out unless given:
`--image gpu --base-image debian@sha256:… --debian-packages packages.txt`.
"""

import argparse
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from tools.supply_chain.inventory import Package, read_list
from tools.supply_chain.locks import IMAGES

PROJECT = Path(__file__).parents[2]
FILE_NAME = "tideserve:file"
"""Property of a Python package: the wheel or archive that the image is made with."""


def read_dockerfile(image: str) -> tuple[str, list[str]]:
    """Return the base image of a Dockerfile, and the Debian packages that its serving stage installs."""
    text = (PROJECT / f"k8s/images/{image}.Dockerfile").read_text("utf-8").replace("\\\n", " ")
    serving = text.partition(" AS serving\n")[2].partition("\nFROM ")[0]
    arguments = dict(re.findall(r'^ARG (\w+)="?([^"\n]+)', text, re.MULTILINE))
    installed = " ".join(re.findall(r"apt-get install (.+?) &&", serving))
    installed = re.sub(r"\$\{(\w+)\}", lambda found: arguments[found[1]], installed)
    return arguments["BASE_IMAGE"], [word for word in installed.split() if not word.startswith("--")]


def build_bom(image: str, packages: Iterable[Package], base: str, debian: Mapping[str, str | None]) -> Bom:
    """The bill of materials of one image; the same input gives the same document.

    `packages` are of all lock files. `debian` has the version of every Debian package, or None. `base` names
    the base image.
    """
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]
    version, license_ = project["version"], project["license"]
    whole = _component(f"tideserve-{image}", version, ComponentType.CONTAINER, license_=license_)
    ours = PackageURL("pypi", None, "tideserve", version)
    parts = [
        _base_image(base),
        _component("tideserve", version, ComponentType.APPLICATION, ours, license_=license_),
    ]
    for name, number in sorted(debian.items()):
        purl = PackageURL("deb", "debian", name, number, {"distro": "debian-12"})
        parts.append(_component(name, number, purl=purl))
    for package in packages:
        if image in package.locks:
            purl = PackageURL("pypi", None, package.name, package.version)
            part = _component(
                package.name, package.version, purl=purl, sha256=package.sha256, license_=package.license
            )
            part.properties = [Property(name=FILE_NAME, value=package.file)]
            parts.append(part)
    bom = Bom(components=parts)
    bom.metadata.component = whole
    bom.register_dependency(whole, parts)
    return bom


def render(bom: Bom) -> str:
    """As JSON of CycloneDX 1.6. The serial number follows from the content, and there is no time."""
    bom.metadata.timestamp = None  # type: ignore[assignment]
    bom.serial_number = uuid5(NAMESPACE_URL, "tideserve")
    bom.serial_number = uuid5(bom.serial_number, JsonV1Dot6(bom).output_as_string())
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def read_debian_packages(text: str) -> dict[str, str]:
    """Versions by package, from the output of `dpkg-query --show`. Raises ValueError for other lines."""
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        if len(fields) != 2:
            raise ValueError(f"line {number} of the Debian packages: {line!r} is not a package and a version")
        found[fields[0].partition(":")[0]] = fields[1]
    return found


def _base_image(base: str) -> Component:
    name, _, digest = base.partition("@")
    repository, _, tag = name.rpartition(":") if ":" in name.rpartition("/")[2] else (name, "", "")
    purl = PackageURL("oci", None, repository.rpartition("/")[2], digest, {"repository_url": repository})
    part = _component(
        repository,
        digest or tag or None,
        ComponentType.CONTAINER,
        purl if digest else None,
        sha256=digest.removeprefix("sha256:"),
    )
    part.bom_ref.value = base
    return part


def _component(
    name: str,
    version: str | None,
    kind: ComponentType = ComponentType.LIBRARY,
    purl: PackageURL | None = None,
    *,
    sha256: str = "",
    license_: str = "",
) -> Component:
    return Component(
        type=kind,
        name=name,
        version=version,
        purl=purl,
        bom_ref=str(purl or name),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256)] if sha256 else None,
        licenses=[LicenseFactory().make_from_string(license_)] if license_ else None,
    )


def main() -> None:
    """Write `IMAGE.cdx.json` for each image, or for one."""
    parser = argparse.ArgumentParser(description="Write the images' bills of materials.")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--image", choices=IMAGES, help="one image; without, all")
    parser.add_argument("--base-image", help="value of the build argument BASE_IMAGE")
    parser.add_argument("--debian-packages", type=Path, help="output of dpkg-query --show in the image")
    given = parser.parse_args()
    if not given.image and (given.base_image or given.debian_packages):
        parser.error("--base-image and --debian-packages are of one image: name it with --image")
    given.out.mkdir(parents=True, exist_ok=True)
    for image in [given.image] if given.image else IMAGES:
        base, installed = read_dockerfile(image)
        debian: dict[str, str | None] = dict.fromkeys(installed)
        if given.debian_packages:
            debian = {**read_debian_packages(given.debian_packages.read_text("utf-8"))}
        path = given.out / f"{image}.cdx.json"
        path.write_text(render(build_bom(image, read_list(), given.base_image or base, debian)), "utf-8")
        print(path)


if __name__ == "__main__":
    main()
