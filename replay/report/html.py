"""The HTML page of a replay: a single file that loads nothing, and opens without a network."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadtests.drawing.json_numbers import finite
from loadtests.drawing.pages import assembled, write_page
from replay.defaults import GOAL, ORACLE
from replay.report.comparison import cheapest_peer, standings, verdict
from replay.report.document import document, thinned
from replay.result import Result
from serve_app.cli import formats

_UNSEEN = ("seq", "deployment", "model", "signals", "ages_s")
"""What the page does not show of a decision: two thirds of it, which are in `--json`."""


def write_html(path: str | Path, results: Sequence[Result], main: int = 0) -> Path:
    """Write the page to `path`, with `results[main]` in its headline; return the path.

    Raises ValueError without results, or if `main` is not one of them, and OSError if the file cannot be
    written.
    """
    return write_page(path, page(results, main))


def page(results: Sequence[Result], main: int = 0) -> str:
    """Return the page as text."""
    rows = standings(results, main)
    result = results[main]
    peer = cheapest_peer(rows)
    data = {
        "main": main,
        "goal": GOAL,
        "oracle": ORACLE,
        "cheapest": peer.policy if peer is not None else None,
        "rows": finite([asdict(row) for row in rows]),
        "results": [_for_page(entry) for entry in results],
    }
    return assembled(
        "replay.report.page",
        "replay",
        data,
        title=f"{formats.plain(result.policy)} on {formats.plain(result.trace)}",
        story=verdict(result, rows),
        facts=_facts(result),
    )


def _facts(result: Result) -> str:
    ttft, itl = formats.seconds(result.ttft_target_s), formats.seconds(result.itl_target_s)
    return (
        f"{formats.whole(result.requests)} requests in {formats.seconds(result.duration_s)} · "
        f"{formats.plain(result.profile)} · "
        f"P{result.percentile:g} of TTFT ≤ {ttft} and of ITL ≤ {itl} in every minute"
    )


def _for_page(result: Result) -> dict[str, Any]:
    known = document(thinned(result))
    known["decisions"] = [
        {key: value for key, value in record.items() if key not in _UNSEEN} for record in known["decisions"]
    ]
    return known
