"""Which licence a package states, as an SPDX expression, and whether we may use it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from license_expression import Licensing
from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

RULES = Path(__file__).parents[2] / "requirements/licenses.toml"

# Free texts and classifiers that leave one reading. "BSD" does not: it may have two, three or four clauses.
_TEXTS = {
    "apache": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache 2.0 license": "Apache-2.0",
    "apache license": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "bsd 3-clause license": "BSD-3-Clause",
    "3-clause bsd license": "BSD-3-Clause",
    "gplv2": "GPL-2.0-only",
    "isc license": "ISC",
    "mit license": "MIT",
    "psfl": "PSF-2.0",
}
_CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}


@dataclass(frozen=True, slots=True)
class Read:
    """A licence that a person read in a package's own files, because its metadata leaves it open."""

    states: str
    """What the metadata stated then, as `statement` says it; when that changes, it has to be read again."""
    license: str
    evidence: str


@dataclass(frozen=True, slots=True)
class Condition:
    """A licence with conditions on what uses a package, and the packages for which we meet them."""

    license: str
    packages: frozenset[str]
    reason: str


@dataclass(frozen=True, slots=True)
class Rules:
    """`requirements/licenses.toml`."""

    allowed: frozenset[str]
    conditions: tuple[Condition, ...]
    read: Mapping[str, Read]

    @staticmethod
    def load(text: str | None = None) -> Rules:
        """The rules of `text`, or of the file. Raises TypeError or KeyError for a malformed one."""
        document = tomllib.loads(RULES.read_text("utf-8") if text is None else text)
        return Rules(
            frozenset(document["allowed"]),
            tuple(
                Condition(each["license"], frozenset(each["packages"]), each["reason"])
                for each in document.get("condition", [])
            ),
            {name: Read(**each) for name, each in document.get("read", {}).items()},
        )

    def permits(self, name: str, expression: str) -> bool:
        """Whether package `name` may be used under `expression`: an OR needs one side, an AND both."""
        taken = self.allowed | {each.license for each in self.conditions if name in each.packages}
        licensing = Licensing()

        def holds(node: Any) -> bool:
            if isinstance(node, licensing.AND):
                return all(holds(each) for each in node.args)
            if isinstance(node, licensing.OR):
                return any(holds(each) for each in node.args)
            return str(node) in taken

        return holds(licensing.parse(expression))


def statement(metadata: Mapping[str, Any]) -> str:
    """What metadata says of the licence, in one line: its text's first line, and its classifiers."""
    text = _first_line(metadata)
    return "; ".join(part for part in (text, ", ".join(_classifiers(metadata))) if part) or "nothing"


def stated_license(metadata: Mapping[str, Any]) -> str | None:
    """The SPDX expression that the metadata of a wheel states; None where it states none, or leaves it open.

    `metadata` is as PEP 566 has it in JSON. The expression of PEP 639 comes first, then the free text, then a
    classifier, if there is only one.
    """
    expression = metadata.get("license_expression")
    if expression:
        return str(canonicalize_license_expression(expression))
    text = _first_line(metadata)
    if text.lower() in _TEXTS:
        return _TEXTS[text.lower()]
    try:
        return str(canonicalize_license_expression(text))
    except InvalidLicenseExpression:
        pass
    classifiers = _classifiers(metadata)
    return _CLASSIFIERS.get(classifiers[0]) if len(classifiers) == 1 else None


def _first_line(metadata: Mapping[str, Any]) -> str:
    lines = str(metadata.get("license") or "").strip().splitlines() or [""]
    return lines[0].strip()


def _classifiers(metadata: Mapping[str, Any]) -> Sequence[str]:
    found = [each for each in metadata.get("classifier", []) if each.startswith("License ::")]
    general = ("OSI Approved", "DFSG approved", "Freely Distributable")
    return [last for last in (each.split(" :: ")[-1] for each in found) if last not in general]
