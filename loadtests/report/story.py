"""A load test in one sentence."""

from collections.abc import Iterator

from loadtests.fleet import Fleet
from loadtests.record import Run
from loadtests.summary import Summary
from loadtests.units import seconds
from serve_app.cli.formats import count


def story(run: Run, summary: Summary) -> str:
    """Return `30 requests arrived before a replica was ready; the first token came after 17.2 s; …`"""
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
        yield from _woken(run, woken)
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


def _woken(run: Run, woken: list[Fleet]) -> Iterator[str]:
    """Tell how many requests were due before the first replica of their model was ready."""
    ready = {fleet.model: fleet.first_ready_s for fleet in woken}
    early = 0
    for record in run.records:
        if record.model in ready:
            at = ready[record.model]
            early += at is None or record.at_s < at
    yield f"{count(early, 'request')} arrived before a replica was ready"


def _fleet(fleet: Fleet, named: bool, back_to: int | None) -> str:
    of = f" of {fleet.model}" if named else ""
    if not fleet.peak_ready:
        return f"no replica{of} was ever ready"
    text = f"{count(fleet.peak_ready, 'replica')}{of} at most"
    if fleet.returned_s is not None:
        text += f", back at {back_to or 'zero'} {seconds(fleet.returned_s)} after the last answer"
    return text
