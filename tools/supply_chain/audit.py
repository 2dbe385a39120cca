"""Ask an advisory database for known vulnerabilities of every locked package, by pip-audit.

Exits with 0 when none is known, with 1 when one is that `requirements/advisories.toml` does not accept,
and with 2 when the database could not be asked about every package.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from tools.supply_chain.locks import LOCKS, REQUIREMENTS, lock_file

PIP_AUDIT = Path(sys.executable).parent / "pip-audit"
ACCEPTED = REQUIREMENTS / "advisories.toml"
OSV = "https://api.osv.dev/v1/query"
NONE_KNOWN, KNOWN, NOT_ASKED = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Advisory:
    """A known vulnerability of a locked package."""

    package: str
    version: str
    ids: frozenset[str]
    """Its name in each database that has it."""
    fixed_in: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Accepted:
    """An advisory that does not concern us, or that we live with until a day."""

    id: str
    reason: str
    until: date


@dataclass(frozen=True, slots=True)
class Answer:
    """What pip-audit found out of one lock file."""

    found: tuple[Advisory, ...] = ()
    not_asked: tuple[str, ...] = ()
    """Packages that the database was not asked about, or the whole file, each with the reason."""


def ask(lock: Path, url: str) -> Answer:
    """Ask the OSV database at `url` of every package of a lock file. Nothing is installed or resolved."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "report.json")
        options = ["--require-hashes", "--disable-pip", "--progress-spinner", "off", "--aliases", "on"]
        service = ["--vulnerability-service", "osv", "--osv-url", url]
        files = ["--format", "json", "--output", str(output), "--requirement", str(lock)]
        done = subprocess.run(
            [PIP_AUDIT, *options, *service, *files], capture_output=True, text=True, check=False
        )
        # pip-audit exits with 1 both for what it found, with a report, and for what it could not do, without.
        if output.exists():
            return read_report(json.loads(output.read_text("utf-8")))
        last = (done.stderr.strip().splitlines() or ["pip-audit said nothing"])[-1]
        return Answer(not_asked=(f"{lock.name}: {url} could not be asked. {last[:300]}",))


def read_report(report: Mapping[str, Any]) -> Answer:
    """pip-audit's report: it passes over what the database does not know, and exits with 0."""
    found, skipped = [], []
    for package in report["dependencies"]:
        if "skip_reason" in package:
            skipped.append(f"{package['name']}: {package['skip_reason']}")
        for each in package.get("vulns", []):
            ids = frozenset((each["id"], *each.get("aliases", [])))
            found.append(Advisory(package["name"], package["version"], ids, tuple(each["fix_versions"])))
    return Answer(tuple(found), tuple(skipped))


def read_accepted(text: str) -> list[Accepted]:
    """Those of `advisories.toml`. Raises TypeError for a key that is missing or too many."""
    return [Accepted(**each) for each in tomllib.loads(text).get("accepted", [])]


def open_advisories(found: Iterable[Advisory], accepted: Sequence[Accepted], today: date) -> list[Advisory]:
    """Those that nothing accepts today."""
    in_force = {each.id for each in accepted if today <= each.until}
    return [advisory for advisory in found if not advisory.ids & in_force]


def main(arguments: Sequence[str] | None = None) -> int:
    """Audit the lock files and say what was found; returns the exit code."""
    parser = argparse.ArgumentParser(description="Known vulnerabilities of the locked packages.")
    parser.add_argument("--osv-url", default=OSV, help="the advisory database, or a mirror of it")
    parser.add_argument("locks", nargs="*", type=Path, help="lock files; without, all of them")
    given = parser.parse_args(arguments)
    answers = [ask(lock, given.osv_url) for lock in given.locks or map(lock_file, LOCKS)]
    found = dict.fromkeys(advisory for answer in answers for advisory in answer.found)
    not_asked = [line for answer in answers for line in answer.not_asked]
    left = open_advisories(found, read_accepted(ACCEPTED.read_text("utf-8")), date.today())
    for each in left:
        fixed = f"fixed in {', '.join(each.fixed_in)}" if each.fixed_in else "no release fixes it"
        print(f"{each.package} {each.version}: {', '.join(sorted(each.ids))}; {fixed}")
    for line in not_asked:
        print(f"not audited: {line}", file=sys.stderr)
    print(
        f"known vulnerabilities: {len(left)}, accepted: {len(found) - len(left)}, not asked: {len(not_asked)}"
    )
    if left:
        return KNOWN
    return NOT_ASKED if not_asked else NONE_KNOWN


if __name__ == "__main__":
    sys.exit(main())
