"""Every package of every lock file: its licence, and the file that is installed on Linux with Python 3.11.

`python -m tools.supply_chain.inventory` asks pip for the metadata of the locked versions, checks the licences
by `requirements/licenses.toml` and writes `requirements/licenses.csv`. All else here reads that file and
needs no network.
"""

import csv
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name

from tools.supply_chain.licenses import Rules, stated_license, statement
from tools.supply_chain.locks import LOCKS, REQUIREMENTS, Locked, read_lock

LIST = REQUIREMENTS / "licenses.csv"
_COLUMNS = ("name", "version", "license", "locks", "file", "sha256")


@dataclass(frozen=True, slots=True)
class Package:
    """One version of a package, and the lock files that have it."""

    name: str
    version: str
    license: str
    """An SPDX expression."""
    locks: tuple[str, ...]
    file: str
    sha256: str


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


def ask_pip(locked: Iterable[Locked]) -> list[dict[str, Any]]:
    """What pip would install, with its metadata: the entries of its installation report.

    Versions alone are asked for: told of the hashes, pip would fetch 4 GB of files to check them, where the
    index's metadata will do. The hashes that it reports are compared with the lock's in `combine`. By `===`,
    because `==` takes torch's CPU build for the CUDA build of the same version.
    """
    if (sys.version_info[:2], platform.system(), platform.machine()) != ((3, 11), "Linux", "x86_64"):
        raise SystemExit("the list is of what the images hold: write it with Python 3.11 on Linux, x86-64")
    with tempfile.TemporaryDirectory() as folder:
        wanted, report = Path(folder, "wanted.txt"), Path(folder, "report.json")
        wanted.write_text("".join(f"{each.name}==={each.version}\n" for each in locked), "utf-8")
        options = ["--dry-run", "--ignore-installed", "--no-deps", "-qq", "--disable-pip-version-check"]
        # Where the index has no metadata apart from the files, pip reads the part of a file that has it.
        options += ["--use-feature", "fast-deps"]
        subprocess.run(
            [sys.executable, "-m", "pip", "install", *options, "--report", report, "--requirement", wanted],
            check=True,
        )
        entries: list[dict[str, Any]] = json.loads(report.read_text("utf-8"))["install"]
        return entries


def combine(
    locks: Mapping[str, list[Locked]], reports: Mapping[str, list[dict[str, Any]]], rules: Rules
) -> tuple[list[Package], list[str]]:
    """The list for the lock files and pip's reports of the same names, and what is wrong with it, by line."""
    found: dict[tuple[str, str], Package] = {}
    wrong: list[str] = []
    for lock, entries in reports.items():
        hashes = {each.name: each.hashes for each in locks[lock]}
        for entry in entries:
            package, problems = _package(entry, rules)
            wrong += problems
            if package.sha256 not in hashes.pop(package.name, frozenset()):
                wrong.append(f"{lock}: {package.file} is not a file that was locked")
            before = found.get((package.name, package.version))
            names = (*(before.locks if before else ()), lock)
            found[package.name, package.version] = Package(
                package.name, package.version, package.license, names, package.file, package.sha256
            )
        wrong += [f"{lock}: pip says nothing of {name}" for name in hashes]
    taken = {package.name for package in found.values()}
    wrong += [f"licenses.toml has {name}, which no lock has" for name in _named(rules) if name not in taken]
    return list(found.values()), list(dict.fromkeys(wrong))


def _named(rules: Rules) -> Iterator[str]:
    yield from rules.read
    for condition in rules.conditions:
        yield from sorted(condition.packages)


def _package(entry: Mapping[str, Any], rules: Rules) -> tuple[Package, list[str]]:
    """Without lock files; and what is wrong with its licence."""
    metadata = entry["metadata"]
    name, version = canonicalize_name(metadata["name"]), metadata["version"]
    says = statement(metadata)
    read = rules.read.get(name)
    license_ = stated_license(metadata) or (read.license if read and read.states == says else None)
    wrong = []
    if license_ is None:
        wrong = [f"{name} {version} states {says!r}: read its licence and enter it in licenses.toml"]
    elif not rules.permits(name, license_):
        wrong = [f"{name} {version} is under {license_}, which licenses.toml does not permit"]
    file = unquote(urlsplit(entry["download_info"]["url"]).path.rsplit("/", 1)[-1])
    sha256 = entry["download_info"]["archive_info"]["hashes"]["sha256"]
    return Package(name, version, license_ or "NOASSERTION", (), file, sha256), wrong


def main() -> None:
    """Write the list; exits with 1, and writes nothing, when a licence is not permitted."""
    locks = {lock: read_lock(lock) for lock in LOCKS}
    reports = {lock: ask_pip(packages) for lock, packages in locks.items()}
    packages, wrong = combine(locks, reports, Rules.load())
    if wrong:
        raise SystemExit("\n".join(wrong))
    write_list(packages)
    print(f"{LIST}: {len(packages)} packages")


if __name__ == "__main__":
    main()
