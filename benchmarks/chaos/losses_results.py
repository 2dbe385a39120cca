"""The result of losses in a row: tables in Markdown, and a JSON document that gives them again."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.chaos.continuity import Row, judge, references
from benchmarks.chaos.greedy import Heard, differences
from benchmarks.chaos.observed import Event

FILE = "losses.json"
_VERSION = 1
_SHOWN = 40


def document(events: Sequence[Event], heard: Sequence[Heard], about: Mapping[str, Any]) -> dict[str, Any]:
    """Everything done and heard. Times are of one monotonic clock."""
    return {
        "version": _VERSION,
        **about,
        "rows": [asdict(row) for row in judge(events, heard)],
        "events": [asdict(event) for event in events],
        "streams": [asdict(one) for one in heard],
    }


def read_rows(path: Path) -> list[Row]:
    """The rows of a result. Raises ValueError for a file that is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["version"] != _VERSION:
            raise ValueError(f"version {found['version']}, not {_VERSION}")
        return [Row(**row) for row in found["rows"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"--show = {path}: no result of losses in a row ({error})") from None


def notes(events: Sequence[Event], heard: Sequence[Heard]) -> list[str]:
    """A line for each stream that was broken or said something else."""
    begin_s = min((event.at_s for event in events), default=0.0)
    undisturbed = references(events, heard)
    found = []
    for one in heard:
        name = f"{one.subject}, {one.opened_s - begin_s:.1f} to {one.ended_s - begin_s:.1f} s"
        name += f", {len(one.moves)} moves"
        if not one.whole:
            found.append(f"{name}: {one.outcome} after {len(one.text)} characters: {one.error}")
        elif what := differences(one, undisturbed[one.subject]):
            found.append(
                f"{name}: differs in {', '.join(what)}{_seam(one.text, undisturbed[one.subject].text)}"
            )
    return found


def _seam(text: str, undisturbed: str) -> str:
    """Where two texts part, and how each goes on."""
    if text == undisturbed:
        return ""
    same = next(
        (index for index, (one, other) in enumerate(zip(text, undisturbed, strict=False)) if one != other),
        min(len(text), len(undisturbed)),
    )
    ways = (repr(one[same : same + _SHOWN]) for one in (text, undisturbed))
    return f" after {same} of {len(undisturbed)} characters: {' and not '.join(ways)}"
