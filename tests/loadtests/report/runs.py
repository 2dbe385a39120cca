"""What the samples lack for reports: two models, and every way for a request to fail."""

from dataclasses import replace
from functools import cache

from loadtests.record import Outcome, Record, Run
from loadtests.summary import Summary, summarize
from loadtests.verdicts import Verdicts, judge
from tests.loadtests import samples

OTHER = "a-model-with-a-rather-long-name-8b-instruct"
_OUTCOMES: tuple[Outcome, ...] = ("failed", "abandoned", "broken", "rejected")


def reported(run: Run) -> tuple[Run, Summary, Verdicts]:
    """What every report is given."""
    summary = summarize(run)
    return run, summary, judge(run, summary)


@cache
def two_models() -> Run:
    """A burst on two models, the second of which tells neither its target nor what is wanted at first."""
    kept = samples.cold_burst()
    looks = tuple(
        replace(look, model=OTHER, wanted=-1, target=look.target if look.at_s > 100 else -1)
        for look in kept.samples
    )
    decisions = [*kept.decisions]
    decisions += [dict(one) | {"model": OTHER, "at": one["at"] + 3.0} for one in kept.decisions]
    return replace(
        kept,
        records=tuple(_failing(record) for record in kept.records),
        samples=(*kept.samples, *looks),
        decisions=tuple(sorted(decisions, key=lambda record: float(record["at"]))),
    )


def _failing(record: Record) -> Record:
    if record.index % 3 == 0:
        record = replace(record, model=OTHER)
    if record.index < 60 or record.index % 9:
        return record
    outcome = _OUTCOMES[record.index % 4]
    pieces = record.pieces_s[:3] if outcome == "broken" else ()
    return replace(
        record, outcome=outcome, error="engine_error: no more", pieces_s=pieces, output_tokens=None
    )
