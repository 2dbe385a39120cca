"""A CycloneDX bill of materials for each image: its base, Debian packages and Python packages.

`python -m tools.supply_chain.sbom --out build/sbom` writes what the repository decides. What only a built
image knows, its base's digest and the versions of its Debian packages, is left out unless given:
`--image gpu --base-image debian@sha256:… --debian-packages packages.txt`.
"""

import argparse
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

from tools.supply_chain.dockerfile import Dockerfile
from tools.supply_chain.inventory import Package, read_list
from tools.supply_chain.locks import IMAGES

PROJECT = Path(__file__).parents[2]
FILE_NAME = "tideserve:file"
"""Property of a Python package: the wheel or archive that the image is made with."""


def dockerfile(image: str) -> Dockerfile:
    """That of an image."""
    return Dockerfile.read((PROJECT / f"k8s/images/{image}.Dockerfile").read_text("utf-8"))


def build_bom(
    image: str, packages: Iterable[Package], recipe: Dockerfile, base: str, debian: Mapping[str, str]
) -> Bom:
    """The bill of materials of one image; the same input gives the same document.

    `packages` are of all lock files. `debian` has the version of every Debian package in the image; if empty,
    the packages that `recipe` asks for are listed, without versions. `base` names the base image.
    """
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]
    licenses = LicenseFactory()
    ours = licenses.make_from_string(project["license"])
    whole = Component(
        type=ComponentType.CONTAINER, name=f"tideserve-{image}", version=project["version"], licenses=[ours]
    )
    whole.bom_ref.value = whole.name
    parts = [_base_image(base), _tideserve(project["version"], [ours])]
    asked = sorted(debian or recipe.default.installed)
    parts += [_debian_package(name, debian.get(name)) for name in asked]
    parts += [_python_package(package, licenses) for package in packages if image in package.locks]
    bom = Bom(components=parts)
    bom.metadata.component = whole
    bom.register_dependency(whole, parts)
    return bom


def render(bom: Bom) -> str:
    """As JSON of CycloneDX 1.6, with a serial number and no time that are those of its content."""
    bom.metadata.timestamp = None  # type: ignore[assignment]
    bom.serial_number = uuid5(NAMESPACE_URL, "tideserve")
    bom.serial_number = uuid5(bom.serial_number, JsonV1Dot6(bom).output_as_string())
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def read_debian_packages(text: str) -> dict[str, str]:
    """What `dpkg-query --show` prints: a package and its version. Raises ValueError for other lines."""
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
    part = Component(type=ComponentType.CONTAINER, name=repository, version=digest or tag or None)
    if digest.startswith("sha256:"):
        part.purl = PackageURL(
            "oci", None, repository.rpartition("/")[2], digest, {"repository_url": repository}
        )
        part.hashes = [HashType(alg=HashAlgorithm.SHA_256, content=digest.removeprefix("sha256:"))]
    part.bom_ref.value = base
    return part


def _tideserve(version: str, licenses: Iterable[object]) -> Component:
    part = Component(
        type=ComponentType.APPLICATION,
        name="tideserve",
        version=version,
        purl=PackageURL("pypi", None, "tideserve", version),
        licenses=licenses,  # type: ignore[arg-type]
    )
    part.bom_ref.value = str(part.purl)
    return part


def _debian_package(name: str, version: str | None) -> Component:
    purl = PackageURL("deb", "debian", name, version, {"distro": "debian-12"})
    part = Component(type=ComponentType.LIBRARY, name=name, version=version, purl=purl)
    part.bom_ref.value = str(purl)
    return part


def _python_package(package: Package, licenses: LicenseFactory) -> Component:
    purl = PackageURL("pypi", None, package.name, package.version)
    part = Component(
        type=ComponentType.LIBRARY,
        name=package.name,
        version=package.version,
        purl=purl,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=package.sha256)],
        licenses=[licenses.make_from_string(package.license)],
        properties=[Property(name=FILE_NAME, value=package.file)],
    )
    part.bom_ref.value = str(purl)
    return part


def main() -> None:
    """Write `IMAGE.cdx.json` for each image, or for one."""
    parser = argparse.ArgumentParser(description="Write the images' bills of materials.")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--image", choices=IMAGES, help="one image; without, all")
    parser.add_argument("--base-image", help="what the build argument BASE_IMAGE was")
    parser.add_argument("--debian-packages", type=Path, help="what dpkg-query --show printed in the image")
    given = parser.parse_args()
    if not given.image and (given.base_image or given.debian_packages):
        parser.error("--base-image and --debian-packages are of one image: name it with --image")
    debian = read_debian_packages(given.debian_packages.read_text("utf-8")) if given.debian_packages else {}
    given.out.mkdir(parents=True, exist_ok=True)
    for image in [given.image] if given.image else IMAGES:
        recipe = dockerfile(image)
        base = given.base_image or recipe.arguments["BASE_IMAGE"]
        path = given.out / f"{image}.cdx.json"
        path.write_text(render(build_bom(image, read_list(), recipe, base, debian)), "utf-8")
        print(path)


if __name__ == "__main__":
    main()
