"""Results on a terminal of 80 columns, and as plain text anywhere else."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from replay.defaults import GOAL, ORACLE
from replay.report.comparison import Standing, standings, verdict
from replay.result import PERCENTILES, BackgroundResult, Percentiles, Result
from serve_app.cli import formats

_LONGEST_POLICY = 18
"""Columns: with the nine figures beside it, 80."""
_HEADINGS = (
    "GPU-\nseconds",
    "over\noracle",
    "first\n/ it",
    "SLO\n%",
    "TTFT\n%",
    "starts",
    "chan-\nges",
    "peak",
    "US$",
)


def print_result(result: Result, console: Console | None = None) -> None:
    """Print one result: its attainment, its latencies, its cost, and what the fleet did."""
    console = console or Console()
    rows = standings([result])
    console.print(Text(f"{formats.plain(result.policy)} on {formats.plain(result.trace)}", style="bold"))
    console.print(
        Text(
            f"{result.requests:,} requests in {formats.seconds(result.duration_s)}; "
            f"{formats.plain(result.profile)}; seed {result.seed}",
            style="dim",
        )
    )
    console.print(Text(formats.plain(verdict(result, rows), 400)))
    lanes = [_lanes(result)] if result.lanes else []
    background = [_background(result.background)] if result.background is not None else []
    for table in (_slo(result), *lanes, _latency(result), *background, _cost(result), _fleet(result)):
        console.print()
        console.print(table)


def print_comparison(results: Sequence[Result], console: Console | None = None) -> None:
    """Print the policies of `results` and the peers of the first, cheapest first.

    Raises ValueError without results.
    """
    console = console or Console()
    rows = standings(results)
    priced = any(row.dollars for row in rows)
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column("policy", no_wrap=True)
    for heading in _HEADINGS if priced else _HEADINGS[:-1]:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        name = formats.plain(row.policy, _LONGEST_POLICY)
        cells: list[str | Text] = [Text(name, style="bold" if row.main else "")]
        cells += _figures(row)
        table.add_row(*(cells if priced else cells[:-1]))
    console.print(Text(f"Policies on {formats.plain(results[0].trace)}", style="bold"))
    console.print(table)
    legend = (
        f"SLO: share of requests in minutes within both targets; {100 * GOAL:g} % is the goal. TTFT: share "
        f"of requests within its target. Over oracle: GPU-seconds over the oracle's. First / it: the GPU-"
        f"seconds of {formats.plain(results[0].policy)} over this policy's; below 1 the first is cheaper."
    )
    console.print(Text(legend, style="dim"))


def _figures(row: Standing) -> list[str | Text]:
    met = row.attainment >= GOAL
    return [
        formats.whole(row.gpu_seconds),
        _ratio(row.oracle_ratio),
        "" if row.main else _ratio(row.ratio),
        Text(_percent(row.attainment), style="green" if met else "red"),
        _percent(row.ttft_ok),
        _count(row.starts),
        _count(row.changes),
        _count(row.peak),
        "-" if row.dollars is None else f"{row.dollars:,.{2 if row.dollars < 1000 else 0}f}",
    ]


def _section(title: str, *columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column(title, min_width=23, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right", header_style="dim", min_width=6)
    return table


def _slo(result: Result) -> Table:
    table = _section("SLO", "all", "warm")
    ttft, itl = formats.seconds(result.ttft_target_s), formats.seconds(result.itl_target_s)
    met = Text(formats.percent(result.attainment), style="green" if result.attainment >= GOAL else "red")
    table.add_row(
        f"P{result.percentile:g} TTFT <= {ttft}, ITL <= {itl}", met, formats.percent(result.attainment_warm)
    )
    table.add_row(
        f"requests with TTFT <= {ttft}", formats.percent(result.ttft_ok), formats.percent(result.ttft_ok_warm)
    )
    table.add_row("infeasible on an empty replica", formats.percent(result.infeasible), "")
    table.add_row("rejected", formats.whole(result.rejected), "")
    if result.unanswered:
        table.add_row("never answered", formats.whole(result.unanswered), "")
    return table


def _lanes(result: Result) -> Table:
    table = _section("TTFT by lane", "requests", "SLO", "in time", *(f"P{at:g}" for at in PERCENTILES))
    for lane in result.lanes:
        shares = [
            "-" if share is None else formats.percent(share) for share in (lane.attainment, lane.ttft_ok)
        ]
        table.add_row(lane.lane, formats.whole(lane.requests), *shares, *_seconds(lane.ttft)[1:])
    return table


def _background(work: BackgroundResult) -> Table:
    table = _section("background work", "")
    table.add_row("requests", formats.whole(work.requests))
    table.add_row("tokens", formats.whole(work.tokens))
    table.add_row("finished requests", formats.whole(work.finished))
    table.add_row("last request finished after", formats.seconds(work.finished_at_s))
    late = Text(formats.whole(work.late), style="red" if work.late else "green")
    table.add_row("unfinished at the deadline", late)
    if work.refused:
        table.add_row("larger than the KV cache", formats.whole(work.refused))
    return table


def _latency(result: Result) -> Table:
    table = _section("latency", "requests", "mean", *(f"P{at:g}" for at in PERCENTILES))
    rows: list[tuple[str, Percentiles]] = [
        ("TTFT", result.ttft),
        ("  warm", result.ttft_warm),
        ("  queued for a start", result.ttft_cold),
        ("ITL (of tokens)", result.itl),
        ("end to end", result.e2e),
    ]
    for name, latency in rows:
        table.add_row(name, formats.whole(latency.count), *_seconds(latency))
    return table


def _seconds(latency: Percentiles) -> list[str]:
    if latency.count <= 0:
        return ["-"] * (1 + len(latency.at_s))
    return [formats.seconds(value) for value in (latency.mean_s, *latency.at_s)]


def _cost(result: Result) -> Table:
    table = _section("cost", "GPU-s", "share")
    total = result.gpu_seconds.total
    for name in ("serving", "idle", "warming", "draining"):
        value = getattr(result.gpu_seconds, name)
        table.add_row(name, formats.whole(value), formats.percent(value / total) if total else "-")
    table.add_row(Text("total", style="bold"), Text(formats.whole(total), style="bold"), "")
    if result.price_per_gpu_hour:
        table.add_row(f"at ${result.price_per_gpu_hour:g} a GPU-hour", f"${result.dollars:,.2f}", "")
    if result.oracle_gpu_seconds is not None:
        table.add_row(ORACLE, formats.whole(result.oracle_gpu_seconds), _ratio(result.oracle_ratio, "x"))
    return table


def _fleet(result: Result) -> Table:
    table = _section("fleet", "")
    failed = f", {result.failed_starts} failed" if result.failed_starts else ""
    table.add_row("starts", f"{result.starts:,}{failed}")
    table.add_row("changes of the target", f"{result.changes:,}")
    table.add_row("most replicas at a time", f"{result.peak:,}")
    table.add_row("preemptions", f"{result.preemptions:,}")
    if result.cached_share:
        table.add_row("prompt tokens found in prefix caches", formats.percent(result.cached_share))
    if result.adapter_requests:
        table.add_row("requests that found their adapter loaded", formats.percent(result.adapter_hits))
    table.add_row("streams moved off draining replicas", f"{result.moves:,}")
    if result.policy_errors:
        table.add_row(Text("decisions that raised", style="red"), f"{result.policy_errors:,}")
    return table


def _ratio(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:.2f}{unit}"


def _percent(share: float) -> str:
    return formats.percent(share).removesuffix(" %")


def _count(value: float | None) -> str:
    return "-" if value is None else formats.whole(value)
