"""A result as a JSON document, which `--json` prints, and as the HTML page that embeds it.

The page is a single file that loads nothing, and opens without a network.
"""

import platform
from collections.abc import Sequence
from dataclasses import asdict, fields
from importlib import metadata
from typing import Any

from loadtests.drawing.json_numbers import finite, fixed, series, short
from loadtests.drawing.pages import assembled
from replay.defaults import GOAL, ORACLE
from replay.report.comparison import cheapest_peer, standings, verdict
from replay.result import PERCENTILES, Percentiles, Result, Timeline, Windows
from serve_app import __version__
from serve_app.cli import formats

WINDOW_S = 60.0
_UNSEEN = ("seq", "deployment", "model", "signals", "ages_s")
"""Fields of a decision that the page leaves out: two thirds of its bytes. `--json` has them."""


def document(result: Result) -> dict[str, Any]:
    """Return everything a result holds, as valid JSON.

    Shares are 0 to 1, times are seconds, money is US dollars. Numbers that are not finite are null.
    """
    return {
        "policy": result.policy,
        "trace": result.trace,
        "profile": result.profile,
        "seed": result.seed,
        "duration_s": fixed(result.duration_s, 3),
        "requests": result.requests,
        "rejected": result.rejected,
        "unanswered": result.unanswered,
        "targets": {
            "ttft_s": short(result.ttft_target_s),
            "itl_s": short(result.itl_target_s),
            "percentile": short(result.percentile),
        },
        "attainment": fixed(result.attainment, 6),
        "attainment_warm": fixed(result.attainment_warm, 6),
        "ttft_ok": fixed(result.ttft_ok, 6),
        "ttft_ok_warm": fixed(result.ttft_ok_warm, 6),
        "infeasible": fixed(result.infeasible, 6),
        "gpu_seconds": fixed(result.gpu_seconds.total, 3),
        "gpu_seconds_by_state": {
            "serving": fixed(result.gpu_seconds.serving, 3),
            "idle": fixed(result.gpu_seconds.idle, 3),
            "warming": fixed(result.gpu_seconds.warming, 3),
            "draining": fixed(result.gpu_seconds.draining, 3),
        },
        "oracle_gpu_seconds": fixed(result.oracle_gpu_seconds, 3),
        "oracle_ratio": fixed(result.oracle_ratio, 4),
        "price_per_gpu_hour": short(result.price_per_gpu_hour),
        "dollars": fixed(result.dollars, 4),
        "ttft": {
            "all": _percentiles(result.ttft),
            "warm": _percentiles(result.ttft_warm),
            "cold": _percentiles(result.ttft_cold),
        },
        "itl": _percentiles(result.itl),
        "e2e": _percentiles(result.e2e),
        **_lanes(result),
        "starts": result.starts,
        "failed_starts": result.failed_starts,
        "peak": result.peak,
        "changes": result.changes,
        "preemptions": result.preemptions,
        "cached_share": result.cached_share,
        "moves": result.moves,
        "adapter_requests": result.adapter_requests,
        "adapter_hits": result.adapter_hits,
        "policy_errors": result.policy_errors,
        "peers": {name: _peer(result, summary) for name, summary in result.peers.items()},
        "knobs": finite(result.knobs),
        "versions": versions(),
        "wall_s": fixed(result.wall_s, 3),
        "windows": {"seconds": WINDOW_S, **_arrays(result.windows)},
        "timeline": {"interval_s": short(result.timeline.interval_s), **_arrays(result.timeline)},
        "decisions": finite(result.decisions),
    }


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


def versions() -> dict[str, str]:
    """Return the versions of Tideserve, Python, and the packages that compute the numbers."""
    return {
        "tideserve": __version__,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("numpy", "numba")},
    }


def _percentiles(latency: Percentiles) -> dict[str, float | int | None]:
    values = {f"p{at:g}_s": short(value) for at, value in zip(PERCENTILES, latency.at_s, strict=True)}
    return {"count": short(latency.count), "mean_s": short(latency.mean_s), **values}


def _lanes(result: Result) -> dict[str, Any]:
    """Return the figures of each lane and of the background work; nothing if there is only one lane."""
    known: dict[str, Any] = {}
    if result.lanes:
        known["lanes"] = {
            lane.lane: {
                "requests": lane.requests,
                "attainment": fixed(lane.attainment, 6),
                "ttft_ok": fixed(lane.ttft_ok, 6),
                "ttft": _percentiles(lane.ttft),
            }
            for lane in result.lanes
        }
    if result.background is not None:
        known["background"] = asdict(result.background)
    return known


def _peer(result: Result, summary: dict[str, float]) -> dict[str, float | int | None]:
    """Return a peer's figures, and the ratio of this result's cost to it: below 1, this result is cheaper."""
    theirs = summary["gpu_seconds"]
    ratio = short(result.gpu_seconds.total / theirs, 5) if theirs else None
    return {**{name: short(value) for name, value in summary.items()}, "ratio": ratio}


def _arrays(record: Windows | Timeline) -> dict[str, list[float | int | None]]:
    """Return every array of a record by its field's name. Times keep their digits: 100,000.5 s stays that."""
    return {
        field.name: series(getattr(record, field.name), 10 if field.name == "at_s" else 4)
        for field in fields(record)
        if field.name != "interval_s"
    }
