"""The HTML page of a replay: a single file that loads nothing, and opens without a network."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from loadtests.drawing.json_numbers import finite
from loadtests.drawing.pages import assembled
from replay.defaults import GOAL, ORACLE
from replay.report.comparison import cheapest_peer, standings, verdict
from replay.report.document import document
from replay.result import Result
from serve_app.cli import formats

_UNSEEN = ("seq", "deployment", "model", "signals", "ages_s")
"""Fields of a decision that the page leaves out: two thirds of its bytes. `--json` has them."""


def page(results: Sequence[Result], main: int = 0) -> str:
    """Return the page as text, with `results[main]` in its headline.

    Raises ValueError without results, or if `main` is not one of them.
    """
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
    known = document(result)
    known["decisions"] = [
        {key: value for key, value in record.items() if key not in _UNSEEN} for record in known["decisions"]
    ]
    return known
