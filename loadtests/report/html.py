"""The HTML page of a load test: a single file that loads nothing, and opens without a network."""

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from loadtests.columns import Columns
from loadtests.drawing.json_numbers import short
from loadtests.drawing.pages import assembled, write_page
from loadtests.fleet import Fleet
from loadtests.record import OUTCOMES, Run
from loadtests.report.chart_data import (
    distributions,
    holds,
    points,
    queue_series,
    replica_series,
    window_series,
)
from loadtests.report.document import iso, plain
from loadtests.scenario import Bounds, Scenario
from loadtests.summary import Counts, Summary
from loadtests.units import figure, left_waiting, seconds
from loadtests.verdicts import Verdicts
from serve_app.cli.formats import count
from serve_app.cli.formats import plain as one_line


def story(run: Run, summary: Summary) -> str:
    """`30 requests arrived before a replica was ready; the first token came after 17.2 s; …`"""
    parts = list(_parts(run, summary))
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


def _parts(run: Run, summary: Summary) -> Iterator[str]:
    counts = summary.counts
    if not counts.requests:
        yield "no request was sent"
        return
    woken = [fleet for fleet in summary.fleets if fleet.starts_at == 0]
    first = min((record.pieces_s[0] for record in run.records if record.pieces_s), default=None)
    if woken:
        ready = {fleet.model: fleet.first_ready_s for fleet in woken}
        mine = [record for record in run.records if record.model in ready]
        early = sum((at := ready[record.model]) is None or record.at_s < at for record in mine)
        yield f"{count(early, 'request')} arrived before a replica was ready"
    else:
        yield f"{count(counts.requests, 'request')} in {seconds(summary.rates.span_s)}"
    if first is None:
        yield "no token ever came"
    elif woken:
        begin = min(record.at_s for record in run.records)
        yield f"the first token came after {seconds(first - begin)}"
    elif summary.latencies.ttft is not None:
        yield f"half of them had a first token within {seconds(summary.latencies.ttft.p50)}"
    back_to = dict(run.scenario.get("scaling") or {}).get("returns_to")
    yield from (_fleet(fleet, len(summary.fleets) > 1, back_to) for fleet in summary.fleets)
    if counts.errors:
        yield f"{count(counts.errors, 'request')} ended in an error"


def _fleet(fleet: Fleet, named: bool, back_to: int | None) -> str:
    of = f" of {fleet.model}" if named else ""
    if not fleet.peak_ready:
        return f"no replica{of} was ever ready"
    text = f"{count(fleet.peak_ready, 'replica')}{of} at most"
    if fleet.returned_s is not None:
        text += f", back at {back_to or 'zero'} {seconds(fleet.returned_s)} after the last answer"
    return text


_LONGEST_TEXT = 600
"""Characters shown of a reason, or of another text from outside."""
_MOST_TROUBLES = 30
_COUNTS = ("requests", *OUTCOMES, "retried", "cold")


def page_data(run: Run, summary: Summary, verdicts: Verdicts) -> dict[str, Any]:
    """The data of the page. Times are seconds unless a name says otherwise."""
    scenario = Scenario.model_validate(run.scenario)
    columns = Columns.of(run.records)
    return {
        "duration_s": max([run.duration_s, *(window.end_s for window in summary.windows)]),
        "verdict": _verdict(verdicts),
        "figures": _figures(scenario, summary),
        "bounds": {
            "ttft": bounds_s(scenario.slos.ttft_ms, 1000),
            "warm": bounds_s(scenario.slos.warm_ttft_ms, 1000),
            "itl": bounds_s(scenario.slos.itl_ms, 1000),
            "hold": bounds_s(scenario.slos.cold_wait_s, 1),
        },
        "windows": window_series(run, summary),
        "models": replica_series(run),
        "queues": queue_series(run),
        "decisions": [_decision(record, run.began) for record in run.decisions],
        "points": points(run.records, columns),
        "curves": distributions(columns),
        "holds": holds(run.records, columns),
        "latencies": [{"name": name, **plain(found)} for name, found in summary.latencies.named()],
        "left_waiting": left_waiting(summary.counts.left_waiting),
        "costs": [
            {
                "model": fleet.model,
                "ready": fleet.gpu_seconds.ready,
                "starting": fleet.gpu_seconds.starting,
                "draining": fleet.gpu_seconds.draining,
                "dollars": fleet.dollars if scenario.cost.price_per_gpu_hour else None,
            }
            for fleet in summary.fleets
        ],
        "price_per_gpu_hour": scenario.cost.price_per_gpu_hour,
        "client": _client(run, scenario),
        "counts": {
            "all": _counts(summary.counts),
            "kinds": {name: _counts(found) for name, found in summary.by_kind.items()},
            "models": {name: _counts(found) for name, found in summary.by_model.items()},
        },
        "troubles": [
            {
                "outcome": trouble.outcome,
                "status": trouble.status,
                "words": one_line(trouble.words, _LONGEST_TEXT),
                "count": trouble.count,
                "first_s": trouble.first_s,
            }
            for trouble in summary.troubles[:_MOST_TROUBLES]
        ],
        "run": _run(run, scenario),
    }


def bounds_s(bounds: Bounds | None, per_second: float) -> dict[str, float]:
    """The bounds that are set, by percentile, in seconds."""
    return {name: value / per_second for name, value in bounds or () if value is not None}


def _verdict(verdicts: Verdicts) -> dict[str, Any]:
    judged = [verdict for verdict in verdicts.verdicts if verdict.ok is not None]
    return {
        "overall": verdicts.overall,
        "invalid": [one_line(reason, _LONGEST_TEXT) for reason in verdicts.invalid],
        "judged": len(judged),
        "missed": sum(not verdict.ok for verdict in judged),
        "checks": [
            {
                "name": one_line(verdict.name, 100),
                "bound": figure(verdict.bound, verdict.unit),
                "value": figure(verdict.value, verdict.unit),
                "over": plain(_share(verdict.value, verdict.bound)),
                "least": verdict.name.startswith("scaling.reaches"),
                "exact": verdict.name.startswith("scaling.starts_at"),
                "ok": verdict.ok,
                "words": one_line(verdict.words, _LONGEST_TEXT),
            }
            for verdict in verdicts.verdicts
        ],
    }


def _share(value: float | None, bound: float) -> float | None:
    """`value / bound`; infinity above a bound of 0."""
    if value is None:
        return None
    if bound:
        return value / bound
    return math.inf if value > 0 else 0.0


def _figures(scenario: Scenario, summary: Summary) -> dict[str, Any]:
    rates = summary.rates
    return {
        "requests": summary.counts.requests,
        "errors": summary.counts.errors,
        "cold": summary.counts.cold,
        "error_rate": short(summary.counts.error_rate),
        "error_bound": scenario.slos.error_rate,
        "offered_rps": short(rates.offered_rps),
        "answered_rps": short(rates.answered_rps),
        "output_tokens_per_s": short(rates.output_tokens_per_s),
        "goodput": rates.goodput,
        "goodput_rps": rates.goodput_rps,
        "prompts": plain(summary.prompt_cache),
        "peaks": [fleet.peak_ready for fleet in summary.fleets],
        "held_to_ready_s": [fleet.held_to_ready_s for fleet in summary.fleets],
        "gpu_seconds": summary.gpu_seconds,
        "dollars": summary.dollars if scenario.cost.price_per_gpu_hour else None,
    }


def _decision(record: Mapping[str, Any], began: float) -> dict[str, Any]:
    """The parts of a decision that the page shows."""

    def text(key: str) -> str:
        return one_line(str(record.get(key) or ""), _LONGEST_TEXT)

    def number(key: str) -> int | None:
        value = record.get(key)
        return value if isinstance(value, int) else None

    return {
        "at": round(float(record["at"]) - began, 3),
        "model": str(record.get("model", "")),
        **{key: text(key) for key in ("kind", "mode", "binding", "reason", "counterfactual")},
        **{key: number(key) for key in ("old_target", "new_target", "wanted", "ready")},
        "terms": [
            {
                "name": one_line(str(term.get("name", ""))),
                "replicas": short(float(term.get("replicas", 0))),
                "why": one_line(str(term.get("why", "")), _LONGEST_TEXT),
            }
            for term in _mappings(record.get("terms"))
        ],
        "clamps": [
            {key: one_line(str(clamp.get(key, "")), _LONGEST_TEXT) for key in ("name", "effect")}
            for clamp in _mappings(record.get("clamps"))
        ],
        "notes": [one_line(str(note), _LONGEST_TEXT) for note in record.get("notes") or ()],
    }


def _mappings(value: Any) -> Iterable[Mapping[str, Any]]:
    return (item for item in value or () if isinstance(item, Mapping))


def _client(run: Run, scenario: Scenario) -> dict[str, Any]:
    kept, limits = run.timekeeping, scenario.client
    rows = (
        ("requests sent late, P99", kept.sent_p99_ms, limits.lag_p99_ms),
        ("requests sent late, longest", kept.sent_max_ms, limits.lag_max_ms),
        ("events noticed late, P99", kept.noticed_p99_ms, limits.lag_p99_ms),
        ("events noticed late, longest", kept.noticed_max_ms, limits.lag_max_ms),
    )
    return {
        "cpu_share": plain(kept.cpu_share),
        "processes": limits.processes,
        "rows": [
            {
                "name": name,
                "value": figure(value, "ms"),
                "bound": figure(limit, "ms"),
                "over": plain(value / limit),
                "ok": value <= limit,
            }
            for name, value, limit in rows
        ],
    }


def _counts(counts: Counts) -> dict[str, int]:
    return {name: getattr(counts, name) for name in _COUNTS}


def _run(run: Run, scenario: Scenario) -> list[tuple[str, str]]:
    loop = "closed loop" if scenario.closed is not None else "open loop"
    facts = [
        ("began", iso(run.began).replace("T", " ").replace("+00:00", " UTC")),
        ("lasted", f"{run.duration_s:,.1f} s"),
        ("URL", run.url),
        ("arrivals", loop),
        ("seed", str(scenario.seed)),
        ("scenario", run.scenario_hash[:16]),
        *run.machine.items(),
        *run.versions.items(),
    ]
    return [(one_line(str(name), 40), one_line(str(value), 200)) for name, value in facts]


Theme = Literal["light", "dark"]


def write_html(
    path: str | Path, run: Run, summary: Summary, verdicts: Verdicts, theme: Theme | None = None
) -> Path:
    """Write the page to `path`. Raises OSError if the file cannot be written, and as `page`."""
    return write_page(path, page(run, summary, verdicts, theme))


def page(run: Run, summary: Summary, verdicts: Verdicts, theme: Theme | None = None) -> str:
    """The page as text. Without a `theme` it is light or dark as the reader's system is.

    Raises:
        ValueError: `run.scenario` is not a scenario.
    """
    return assembled(
        "loadtests.report.page",
        "load test",
        page_data(run, summary, verdicts),
        title=str(run.scenario.get("name", "")),
        story=story(run, summary),
        facts=str(run.scenario.get("about", "")),
        theme=theme,
    )
