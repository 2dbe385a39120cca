"""The audit asks an advisory database of every locked package, and tells "none known" from "not asked".

pip-audit itself runs here, against a database on this machine that speaks OSV's protocol.
"""

import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tests.http_server import serving
from tools.supply_chain import audit
from tools.supply_chain.audit import ACCEPTED as ACCEPTED_HERE
from tools.supply_chain.audit import (
    KNOWN,
    NONE_KNOWN,
    NOT_ASKED,
    Advisory,
    Answer,
    main,
    open_advisories,
    read_accepted,
    read_report,
)
from tools.supply_chain.locks import LOCKS, lock_file, read_lock

ACCEPTED = '[[accepted]]\nid = "CVE-2026-1"\nreason = "not called"\nuntil = 2026-12-31\n'
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


def lock(folder: Path, *pins: str) -> str:
    path = folder / "lock.txt"
    path.write_text("".join(f"{pin} --hash=sha256:{'0' * 64}\n" for pin in pins))
    return str(path)


def test_every_locked_package_is_asked_for_and_a_known_advisory_ends_with_1(
    database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    locked = lock(tmp_path, "demo==1.1", "torch==2.13.0+cpu")
    database.asked.clear()
    assert main(["--osv-url", database.url, locked]) == KNOWN
    asked = {(query["package"]["name"], query["version"]) for query in database.asked}
    assert asked == {("demo", "1.1"), ("torch", "2.13.0+cpu")}
    out = capsys.readouterr().out
    assert "demo 1.1: CVE-2026-1, GHSA-aaaa-bbbb-cccc; fixed in 1.2" in out
    assert "known vulnerabilities: 1" in out


def test_no_known_advisory_ends_with_0(
    database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--osv-url", database.url, lock(tmp_path, "other==1")]) == NONE_KNOWN
    assert "known vulnerabilities: 0" in capsys.readouterr().out


def test_a_database_that_does_not_answer_ends_with_2_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = "http://127.0.0.1:1/v1/query"
    assert main(["--osv-url", closed, lock(tmp_path, "demo==1.1")]) == NOT_ASKED
    assert f"not audited: lock.txt: {closed} could not be asked" in capsys.readouterr().err


def test_pip_audit_reads_our_locks(database: Database) -> None:
    """A lock as `make lock` writes it, with hundreds of hashes; of all of them it would take 10 s."""
    database.asked.clear()
    assert main(["--osv-url", database.url, str(lock_file("dev"))]) == NONE_KNOWN
    asked = {(query["package"]["name"], query["version"]) for query in database.asked}
    assert asked == {(package.name, package.version) for package in read_lock("dev")}


def test_every_lock_is_audited_and_one_that_could_not_be_leaves_nothing_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Path] = []

    def ask(lock: Path, url: str) -> Answer:
        asked.append(lock)
        return Answer(not_asked=("no answer",) if lock.stem == "gpu" else ())

    monkeypatch.setattr(audit, "ask", ask)
    assert main([]) == NOT_ASKED
    assert asked == [lock_file(lock) for lock in LOCKS]
    assert "not asked: 1" in capsys.readouterr().out


def test_a_package_that_was_skipped_is_not_taken_for_a_safe_one() -> None:
    report = {"dependencies": [{"name": "pip", "skip_reason": "not found"}], "fixes": []}
    assert read_report(report) == Answer(not_asked=("pip: not found",))


def test_an_accepted_advisory_is_passed_over_until_its_day_by_any_of_its_names() -> None:
    found = [Advisory("demo", "1.1", frozenset({"GHSA-aaaa-bbbb-cccc", "CVE-2026-1"}), ("1.2",))]
    accepted = read_accepted(ACCEPTED)
    assert open_advisories(found, accepted, date(2026, 12, 31)) == []
    assert open_advisories(found, accepted, date(2027, 1, 1)) == found


def test_what_is_accepted_has_a_reason_and_a_day() -> None:
    assert all(each.reason for each in read_accepted(ACCEPTED_HERE.read_text()))
    with pytest.raises(TypeError, match="reason"):
        read_accepted('[[accepted]]\nid = "CVE-2026-1"\nuntil = 2026-12-31\n')
