"""The audit asks a database about every locked package, and tells "none known" from "not asked".

pip-audit itself runs here, against a database on this machine that speaks OSV's protocol.
"""

import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tests.http_server import serving
from tools.supply_chain.audit import ACCEPTED, KNOWN, NONE_KNOWN, NOT_ASKED, accepted_on, audit, main
from tools.supply_chain.locks import lock_file, read_lock

VULNERABLE = {
    "id": "GHSA-aaaa-bbbb-cccc",
    "aliases": ["CVE-2026-1"],
    "summary": "a hole",
    "affected": [
        {
            "package": {"name": "demo", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1.2"}]}],
        }
    ],
}


class Database:
    """Knows one advisory, of `demo`."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.url = ""

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        query = json.loads(body)
        self.asked.append(query)
        return 200, {"vulns": [VULNERABLE]} if query["package"]["name"] == "demo" else {}


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    database = Database()
    with serving(database.answer) as address:
        database.url = f"{address}/v1/query"
        yield database


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "lock.txt"
    sha256 = f"--hash=sha256:{'0' * 64}"
    path.write_text(f"demo==1.1 {sha256}\ntorch==2.13.0+cpu {sha256}\n")
    return path


def test_a_known_advisory_of_a_package_ends_with_1(
    database: Database, lock: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--osv-url", database.url, str(lock)]) == KNOWN
    words = capsys.readouterr().out.split()
    assert {"demo", "1.1", "1.2", "GHSA-aaaa-bbbb-cccc", "CVE-2026-1"} <= {word.strip(",") for word in words}


def test_an_accepted_advisory_is_ignored(database: Database, lock: Path) -> None:
    assert audit(lock, database.url, ["CVE-2026-1"]) == NONE_KNOWN


def test_every_package_of_a_lock_is_asked_about(database: Database) -> None:
    """A lock as `make lock` writes it, with hundreds of hashes; all locks would take 10 s."""
    database.asked.clear()
    assert main(["--osv-url", database.url, str(lock_file("dev"))]) == NONE_KNOWN
    asked = {(query["package"]["name"], query["version"]) for query in database.asked}
    assert asked == {(package.name, package.version) for package in read_lock(lock_file("dev"))}


def test_a_database_that_does_not_answer_ends_with_2(lock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    closed = "http://127.0.0.1:1/v1/query"
    assert main(["--osv-url", closed, str(lock)]) == NOT_ASKED
    assert f"not audited: lock.txt: {closed} could not be asked" in capsys.readouterr().err


def test_an_advisory_is_accepted_with_a_reason_until_a_day() -> None:
    text = '[[accepted]]\nid = "CVE-2026-1"\nreason = "not called"\nuntil = 2026-12-31\n'
    assert accepted_on(date(2026, 12, 31), text) == ["CVE-2026-1"]
    assert accepted_on(date(2027, 1, 1), text) == []
    accepted_on(date.today(), ACCEPTED.read_text())
    with pytest.raises(ValueError, match="has an id, a reason and a last day"):
        accepted_on(date(2026, 1, 1), text.replace('reason = "not called"\n', ""))
