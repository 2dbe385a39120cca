"""Ask the OSV database for known vulnerabilities of every locked package, with pip-audit.

Exits with 0 when none is known, with 1 when one is known that `requirements/advisories.toml` does not accept,
and with 2 when the database could not be asked about every package.
"""

import argparse
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from tools.supply_chain.locks import LOCKS, REQUIREMENTS, lock_file

PIP_AUDIT = Path(sys.executable).parent / "pip-audit"
ACCEPTED = REQUIREMENTS / "advisories.toml"
OSV = "https://api.osv.dev/v1/query"
NONE_KNOWN, KNOWN, NOT_ASKED = 0, 1, 2


def audit(lock: Path, url: str, accepted: Sequence[str]) -> int:
    """Ask the database at `url` about a lock file, and print its answer. Nothing is installed or resolved."""
    command = [str(PIP_AUDIT), "--require-hashes", "--disable-pip", "--progress-spinner", "off"]
    # Without --strict pip-audit passes over a package that the database could not be asked about.
    command += ["--strict", "--aliases", "on", "--vulnerability-service", "osv", "--osv-url", url]
    command += [f"--ignore-vuln={advisory}" for advisory in accepted]
    command += ["--requirement", str(lock)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    summary = (done.stderr.strip().splitlines() or ["pip-audit said nothing"])[-1]
    # pip-audit exits with 1 for vulnerabilities, which it prints, and for whatever it could not do.
    if done.returncode and not done.stdout.strip():
        print(f"not audited: {lock.name}: {url} could not be asked. {summary[:300]}", file=sys.stderr)
        return NOT_ASKED
    print(f"{lock.name}: {summary}\n{done.stdout}", end="")
    return KNOWN if done.returncode else NONE_KNOWN


def accepted_on(today: date, text: str) -> list[str]:
    """Return the ids that `advisories.toml` accepts today. Raises ValueError for one without a reason."""
    entries = tomllib.loads(text).get("accepted", [])
    for entry in entries:
        if entry.keys() != {"id", "reason", "until"} or not entry["reason"]:
            raise ValueError(f"{entry}: an accepted advisory has an id, a reason and a last day (until)")
    return [entry["id"] for entry in entries if today <= entry["until"]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Audit the lock files, and return the exit code."""
    parser = argparse.ArgumentParser(description="Known vulnerabilities of the locked packages.")
    parser.add_argument("--osv-url", default=OSV, help="the advisory database, or a mirror of it")
    parser.add_argument("locks", nargs="*", type=Path, help="lock files; without, all of them")
    given = parser.parse_args(arguments)
    accepted = accepted_on(date.today(), ACCEPTED.read_text("utf-8"))
    results = {audit(lock, given.osv_url, accepted) for lock in given.locks or map(lock_file, LOCKS)}
    return KNOWN if KNOWN in results else max(results)


if __name__ == "__main__":
    sys.exit(main())
