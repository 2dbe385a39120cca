"""The licence of every locked package, and the file that is installed on Linux with Python 3.11.

`python -m tools.supply_chain.inventory` asks pip for the metadata of the locked versions, checks the licences
by `requirements/licenses.toml` and writes `requirements/licenses.csv`, which the bills of materials read.
"""

import csv
import json
import platform
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from license_expression import Licensing
from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.utils import canonicalize_name

from tools.supply_chain.locks import LOCKS, REQUIREMENTS, Locked, lock_file, read_lock

LIST = REQUIREMENTS / "licenses.csv"
RULES = REQUIREMENTS / "licenses.toml"
_COLUMNS = ("name", "version", "license", "locks", "file", "sha256")
_GENERAL = ("OSI Approved", "DFSG approved", "Freely Distributable")


@dataclass(frozen=True, slots=True)
class Package:
    """One version of a package, with its licence (an SPDX expression) and the lock files that have it."""

    name: str
    version: str
    license: str
    locks: tuple[str, ...]
    file: str
    sha256: str


class Rules:
    """`requirements/licenses.toml`. Raises KeyError for a malformed one."""

    def __init__(self, text: str) -> None:
        document = tomllib.loads(text)
        self.read: dict[str, dict[str, str]] = document.get("read", {})
        """Licences that a person read, by package: `states`, `license`, `evidence`."""
        self.conditions: dict[str, set[str]] = {}
        """Packages that may be used under a licence with conditions, by the licence."""
        for condition in document.get("condition", []):
            self.conditions.setdefault(condition["license"], set()).update(condition["packages"])
        self._allowed = set(document["allowed"])
        self._texts: dict[str, str] = document.get("texts", {})
        self._classifiers: dict[str, str] = document.get("classifiers", {})

    def permits(self, name: str, expression: str) -> bool:
        """Whether package `name` may be used under `expression`: an OR needs one side, an AND both."""
        taken = self._allowed | {each for each, packages in self.conditions.items() if name in packages}
        licensing = Licensing()
        parsed = licensing.parse(expression)
        truth = {each: licensing.TRUE if str(each) in taken else licensing.FALSE for each in parsed.literals}
        return bool(parsed.subs(truth, simplify=True) == licensing.TRUE)

    def license_of(self, metadata: Mapping[str, Any]) -> str | None:
        """The SPDX expression of a wheel's metadata (PEP 566, as JSON); None if a person has to read it.

        The expression of PEP 639 comes first, then the free text, then a classifier if there is only one,
        then the licence that a person read when the metadata stated the same.
        """
        text, classifiers = _text(metadata), _classifiers(metadata)
        if expression := metadata.get("license_expression") or self._texts.get(text.lower()):
            return str(canonicalize_license_expression(expression))
        try:
            return str(canonicalize_license_expression(text))
        except InvalidLicenseExpression:
            pass
        if len(classifiers) == 1 and classifiers[0] in self._classifiers:
            return self._classifiers[classifiers[0]]
        read = self.read.get(canonicalize_name(metadata["name"]))
        return read["license"] if read and read["states"] == statement(metadata) else None


def statement(metadata: Mapping[str, Any]) -> str:
    """What metadata states about the licence, in one line."""
    parts = (_text(metadata), ", ".join(_classifiers(metadata)))
    return "; ".join(part for part in parts if part) or "nothing"


def _text(metadata: Mapping[str, Any]) -> str:
    return (str(metadata.get("license") or "").strip().splitlines() or [""])[0].strip()


def _classifiers(metadata: Mapping[str, Any]) -> list[str]:
    found = [each for each in metadata.get("classifier", []) if each.startswith("License ::")]
    return [last for last in (each.split(" :: ")[-1] for each in found) if last not in _GENERAL]


def ask_pip(locked: Iterable[Locked]) -> list[dict[str, Any]]:
    """Return the entries of pip's installation report for locked packages, with their metadata.

    pip gets versions without hashes: with hashes it would fetch 4 GB of files to check them. `combine`
    compares the hashes that it reports. `===`, because `==` takes torch's CPU build for the CUDA build.
    """
    if (sys.version_info[:2], platform.system(), platform.machine()) != ((3, 11), "Linux", "x86_64"):
        raise SystemExit("the list is of the images' files: write it with Python 3.11 on Linux, x86-64")
    with tempfile.TemporaryDirectory() as folder:
        wanted, report = Path(folder, "wanted.txt"), Path(folder, "report.json")
        wanted.write_text("".join(f"{each.name}==={each.version}\n" for each in locked), "utf-8")
        options = ["--dry-run", "--ignore-installed", "--no-deps", "-qq", "--disable-pip-version-check"]
        # Where the index has no metadata beside the files, pip reads the part of a file that has it.
        options += ["--use-feature", "fast-deps", "--report", str(report), "--requirement", str(wanted)]
        subprocess.run([sys.executable, "-m", "pip", "install", *options], check=True)
        entries: list[dict[str, Any]] = json.loads(report.read_text("utf-8"))["install"]
        return entries


def combine(
    locks: Mapping[str, list[Locked]], reports: Mapping[str, list[dict[str, Any]]], rules: Rules
) -> tuple[list[Package], list[str]]:
    """Return the packages of the lock files and of pip's reports of the same names, and every problem."""
    found: dict[tuple[str, str], Package] = {}
    problems: list[str] = []
    for lock, entries in reports.items():
        hashes = {each.name: each.hashes for each in locks[lock]}
        for entry in entries:
            metadata, download = entry["metadata"], entry["download_info"]
            name, version = canonicalize_name(metadata["name"]), metadata["version"]
            license_ = rules.license_of(metadata)
            if license_ is None:
                says = f"{name} {version} states {statement(metadata)!r}"
                problems.append(f"{says}: read its licence and enter it in licenses.toml")
            elif not rules.permits(name, license_):
                problems.append(f"{name} {version} is under {license_}, which licenses.toml does not permit")
            file = unquote(urlsplit(download["url"]).path.rsplit("/", 1)[-1])
            sha256 = download["archive_info"]["hashes"]["sha256"]
            if sha256 not in hashes.pop(name, frozenset()):
                problems.append(f"{lock}: {file} is not a file that was locked")
            before = found[name, version].locks if (name, version) in found else ()
            found[name, version] = Package(name, version, license_ or "", (*before, lock), file, sha256)
        problems += [f"{lock}: pip reports nothing about {name}" for name in hashes]
    named = {*rules.read, *(name for packages in rules.conditions.values() for name in packages)}
    unused = sorted(named - {name for name, _ in found})
    problems += [f"licenses.toml has {name}, which no lock has" for name in unused]
    return list(found.values()), list(dict.fromkeys(problems))


def read_list(path: Path = LIST) -> list[Package]:
    """The packages of the written list."""
    with path.open(newline="", encoding="utf-8") as file:
        return [Package(**(row | {"locks": tuple(row["locks"].split())})) for row in csv.DictReader(file)]


def write_list(packages: Iterable[Package], path: Path = LIST) -> None:
    """Write the list, in the order of names and versions."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_COLUMNS)
        for each in sorted(packages, key=lambda package: (package.name, package.version)):
            writer.writerow(
                (each.name, each.version, each.license, " ".join(each.locks), each.file, each.sha256)
            )


def main() -> None:
    """Write the list; exits with 1, and writes nothing, when a licence is not permitted."""
    locks = {lock: read_lock(lock_file(lock)) for lock in LOCKS}
    reports = {lock: ask_pip(packages) for lock, packages in locks.items()}
    packages, problems = combine(locks, reports, Rules(RULES.read_text("utf-8")))
    if problems:
        raise SystemExit("\n".join(problems))
    write_list(packages)
    print(f"{LIST}: {len(packages)} packages")


if __name__ == "__main__":
    main()
