"""Load tests on a terminal of 100 columns, and as plain text anywhere else."""

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadtests.columns import COLD_S
from loadtests.compare import Comparison, Metric, Word
from loadtests.conversations import Conversations, PromptCache
from loadtests.fleet import Fleet
from loadtests.record import Record, Run
from loadtests.summary import Counts, Summary
from loadtests.units import difference, figure, left_waiting, seconds
from loadtests.verdicts import Overall, Verdict, Verdicts
from serve_app.cli.formats import count, plain

WIDE = 100
"""Columns that every table fits in; on a narrower terminal they leave some out."""


def default_console() -> Console:
    """Standard output; a file or a pipe is as wide as the tables are."""
    console = Console()
    return console if console.is_terminal else Console(width=max(WIDE, console.width))


def section(title: str, *columns: str, width: int = 20) -> Table:
    """A table with a title over its first column, of at least `width`, and figures in the others."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column(title, min_width=width, header_style="bold", overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", header_style="dim", no_wrap=True)
    return table


_COLOURS: dict[Overall, str] = {"pass": "bold green", "fail": "bold red", "invalid": "bold yellow"}
_OUTCOMES = ("answered", "left", "abandoned", "rejected", "failed", "broken", "retried", "cold")
_LONGEST = 2000
"""Letters of a sentence."""
_TROUBLES = 3
_SLOWEST = 3


def print_summary(summary: Summary, verdicts: Verdicts, run: Run, console: Console | None = None) -> None:
    """Print the verdict, the bounds, the requests and their latencies, the replicas, and the errors."""
    console = console or default_console()
    narrow = console.width < WIDE
    console.print(Text(plain(verdicts.words, _LONGEST), style=_COLOURS[verdicts.overall]))
    console.print(Text(_about(run), style="dim"))
    console.print()
    console.print(_bounds(verdicts.verdicts))
    if unjudged := _unjudged(verdicts.verdicts):
        console.print(Text(unjudged, style="dim"))
    tables = [_requests(summary, narrow), _latencies(summary, narrow), _rates(summary, run)]
    tables += [_prompts(summary.prompt_cache), _conversations(summary.conversations)]
    for table in (*tables, _fleets(summary.fleets), _troubles(summary), _slowest(summary.slowest)):
        if table.row_count:
            console.print()
            console.print(table)
    if waiting := left_waiting(summary.counts.left_waiting):
        console.print()
        console.print(Text(waiting, style="dim"))


def _about(run: Run) -> str:
    name, seed = plain(str(run.scenario.get("name", ""))), run.scenario.get("seed", 0)
    lasted = f"{count(len(run.records), 'request')} in {seconds(run.duration_s)}"
    return f"{name} at {plain(run.url)}: {lasted}; seed {seed}; scenario {run.scenario_hash[:12]}"


def _bounds(verdicts: Sequence[Verdict]) -> Table:
    table = section("bound", "demanded", "measured", "kept", width=26)
    for one in verdicts:
        demanded = figure(one.bound, one.unit)
        if one.ok is None:
            continue
        kept = Text("yes", style="green") if one.ok else Text("NO", style="bold red")
        table.add_row(Text(plain(one.name)), demanded, figure(one.value, one.unit), kept)
    return table


def _unjudged(verdicts: Sequence[Verdict]) -> str:
    """Bounds without a measured figure, with the reason; percentiles of one latency share it."""
    why = {one.name: one.words.partition(": ")[2] for one in verdicts if one.ok is None}
    grouped = dict.fromkeys(
        f"{name.removesuffix('.p50').removesuffix('.p95').removesuffix('.p99')}: {words}"
        for name, words in why.items()
    )
    return f"not judged: {plain('; '.join(grouped), _LONGEST)}" if grouped else ""


def _requests(summary: Summary, narrow: bool) -> Table:
    outcomes: Sequence[str] = _OUTCOMES
    if narrow:
        outcomes = [one for one in _OUTCOMES if one == "answered" or getattr(summary.counts, one)]
    table = section("requests", "all", *outcomes)
    rows: list[tuple[str, Counts]] = [("all", summary.counts)]
    for groups in (summary.by_kind, summary.by_model):
        if len(groups) > 1:
            rows += [(f"  {plain(name, 40)}", counts) for name, counts in groups.items()]
    for name, counts in rows:
        figures = [f"{getattr(counts, outcome):,}" for outcome in outcomes]
        table.add_row(Text(name), f"{counts.requests:,}", *figures)
    return table


def _latencies(summary: Summary, narrow: bool) -> Table:
    low = ("P50",) if narrow else ("mean", "P50", "P90")
    table = section("latency", "count", "never", *low, "P95", "P99", "max")
    for name, latency in summary.latencies.named():
        low_s = (latency.p50,) if narrow else (latency.mean, latency.p50, latency.p90)
        at = (*low_s, latency.p95, latency.p99, latency.max)
        never = f"{latency.never:,}" if latency.never else "-"
        table.add_row(name, f"{latency.count:,}", never, *map(seconds, at))
    return table


def _rates(summary: Summary, run: Run) -> Table:
    table = section("rate", "")
    rates, kept = summary.rates, run.timekeeping
    table.add_row("requests offered", figure(rates.offered_rps, "per_s"))
    table.add_row("requests answered", figure(rates.answered_rps, "per_s"))
    table.add_row("output tokens", figure(rates.output_tokens_per_s, "per_s"))
    if rates.goodput is not None:
        table.add_row("goodput", f"{figure(rates.goodput, 'share')}, {figure(rates.goodput_rps, 'per_s')}")
    if rates.tokens_per_piece is not None:
        table.add_row("tokens per piece", f"{rates.tokens_per_piece:.2f}")
    if run.records:
        table.add_row("busiest client process", f"{figure(kept.cpu_share, 'share')} of a core")
    return table


def _prompts(cache: PromptCache | None) -> Table:
    table = section("prompts", "tokens", "share")
    if cache is None:
        return table
    table.add_row("sent", f"{cache.prompt_tokens:,}", "")
    if cache.cached_tokens is not None:
        share = figure(cache.cached_share, "share")
        table.add_row("found in the prefix cache", f"{cache.cached_tokens:,}", share)
    if cache.infinite_cache_tokens is not None:
        share = figure(cache.infinite_cache_share, "share")
        table.add_row("one unlimited cache would have had", f"{cache.infinite_cache_tokens:,}", share)
    return table


def _conversations(found: Conversations | None) -> Table:
    table = section("conversations", "")
    if found is None:
        return table
    table.add_row("begun", f"{found.conversations:,}")
    table.add_row("turns of each, on average", f"{found.turns / found.conversations:.2f}")
    for words, ended in (
        ("ended with their last turn", found.whole),
        ("ended by the model's context", found.context),
        ("ended by the scenario's time", found.time),
        ("ended by a turn without its whole answer", found.unanswered),
        ("cut short with the run", found.cut_short),
    ):
        if ended:
            table.add_row(words, f"{ended:,}")
    return table


def _fleets(fleets: Sequence[Fleet]) -> Table:
    """One column per model."""
    table = section("replicas", *(plain(fleet.model, 24) for fleet in fleets))
    if not fleets:
        return table
    columns = [dict(_fleet(fleet)) for fleet in fleets]
    for name in dict.fromkeys(key for column in columns for key in column):
        table.add_row(name, *(column.get(name, "-") for column in columns))
    return table


def _fleet(fleet: Fleet) -> Iterator[tuple[str, str]]:
    used = fleet.gpu_seconds
    yield "ready at the start", f"{fleet.starts_at:,}"
    yield "most ready at once", f"{fleet.peak_ready:,}"
    if fleet.held_to_ready_s is not None:
        yield "first queued request to first ready", seconds(fleet.held_to_ready_s)
    if fleet.returned_s is not None:
        yield "last answer to scaled down", seconds(fleet.returned_s)
    yield "changes of the target", f"{fleet.target_changes:,}"
    yield "replicas started or ended", f"{fleet.scale_events:,}"
    if fleet.broken_per_1000_events:
        yield "broken streams per 1,000 of these", f"{fleet.broken_per_1000_events:,.0f}"
    yield "GPU-seconds", f"{used.total:,.0f}"
    yield "  ready", f"{used.ready:,.0f}"
    yield "  starting", f"{used.starting:,.0f}"
    yield "  draining", f"{used.draining:,.0f}"
    if fleet.dollars:
        yield "cost", figure(fleet.dollars, "usd")


def _troubles(summary: Summary) -> Table:
    rest = sum(one.count for one in summary.troubles[_TROUBLES:])
    table = _examples("errors", "count", "status", "the first of them")
    for one in summary.troubles[:_TROUBLES]:
        first = f"request {one.first_index} at {seconds(one.first_s)}: {plain(one.words, 200)}"
        table.add_row(one.outcome, f"{one.count:,}", str(one.status or "-"), Text(first))
    if rest:
        table.add_row("others", f"{rest:,}", "", "")
    return table


def _slowest(records: Sequence[Record]) -> Table:
    table = _examples("longest TTFT", "at", "cold wait", "")
    for one in records[:_SLOWEST]:
        words = f"request {one.index}, {plain(one.kind, 40)}, {one.outcome}"
        held = seconds(one.cold_wait_s) if one.cold_wait_s > COLD_S else "-"
        table.add_row(seconds(one.ttft_s), seconds(one.at_s), held, Text(words))
    return table


def _examples(title: str, second: str, third: str, words: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column(title, min_width=12, header_style="bold", no_wrap=True)
    table.add_column(second, justify="right", header_style="dim", no_wrap=True)
    table.add_column(third, justify="right", header_style="dim", no_wrap=True)
    table.add_column(words, header_style="dim", overflow="fold")
    return table


_WORD_COLOURS: dict[Word, str] = {"better": "green", "worse": "red", "no noise known": "yellow"}


def print_comparison(comparison: Comparison, console: Console | None = None) -> None:
    """Print the differences from A to B, and whether they are more than noise."""
    console = console or default_console()
    style = "bold" if comparison.invalid else ""
    console.print(Text(plain(comparison.words, _LONGEST), style=style))
    for name, side in (("A", comparison.a), ("B", comparison.b)):
        console.print(Text(f"{name}: {side}", style="dim"))
    narrow = console.width < WIDE
    shown = ["A", "B", "B - A", "", "95 % interval", "B is"]
    table = section("", *(shown[:4] + shown[5:] if narrow else shown), width=18)
    for metric in comparison.metrics:
        row = _row(metric)
        table.add_row(*(row[:5] + row[6:] if narrow else row))
    console.print()
    console.print(table)
    notes = [*comparison.notes]
    reasons = dict.fromkeys(metric.why for metric in comparison.metrics if metric.why)
    for why in reasons:
        names = ", ".join(metric.name for metric in comparison.metrics if metric.why == why)
        notes.append(f"{names[:1].upper()}{names[1:]}: {why}.")
    for note in notes:
        console.print(Text(f"- {plain(note, _LONGEST)}", style="dim"))


def _row(metric: Metric) -> list[str | Text]:
    unit = " GPU-s"  # the name of the metric has it

    def change(value: float | None) -> str:
        return difference(value, metric.unit).removesuffix(unit)

    relative = "" if metric.relative is None else f"{100 * metric.relative:+,.1f} %"
    between = ""
    if metric.low is not None and metric.high is not None:
        between = f"{change(metric.low)} to {change(metric.high)}"
    return [
        metric.name,
        *(figure(value, metric.unit).removesuffix(unit) for value in (metric.a, metric.b)),
        change(metric.difference),
        relative,
        between,
        Text(metric.word, style=_WORD_COLOURS.get(metric.word, "dim")),
    ]
