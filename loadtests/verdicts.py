"""Whether a run met the demands of its scenario, and whether its figures are valid."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from loadtests.fleet import Fleet
from loadtests.record import Run
from loadtests.scenario import Client, Scaling, Scenario
from loadtests.summary import Summary
from loadtests.units import figure
from serve_app.cli.formats import count

Overall = Literal["pass", "fail", "invalid"]
EXIT_STATUS: dict[Overall, int] = {"pass": 0, "fail": 3, "invalid": 4}
"""Exit statuses of the command; 1 and 2 mean that the command itself failed, or was used wrongly."""
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Verdict:
    """One demand of a scenario."""

    name: str
    """The key in the scenario's file: `slos.ttft_ms.p95`; with the model, where several have replicas."""
    unit: str
    """The unit of `bound` and `value`; see `units.figure`."""
    bound: float
    value: float | None
    """The measured figure; infinity if it never came, None where nothing was measured."""
    ok: bool | None
    """None: there was nothing to judge, which is no failure; `words` has the reason."""
    words: str


@dataclass(frozen=True, slots=True)
class Verdicts:
    """All demands of a scenario, and the overall verdict."""

    overall: Overall
    """An invalid run neither passes nor fails."""
    verdicts: tuple[Verdict, ...]
    invalid: tuple[str, ...]
    """Every reason why the figures are invalid, in words."""

    @property
    def exit_status(self) -> int:
        """0 for a pass, 3 for a failure, 4 for an invalid run."""
        return EXIT_STATUS[self.overall]

    @property
    def words(self) -> str:
        """All of it in a sentence or two."""
        if self.invalid:
            return f"Invalid, so it is not judged: {'; '.join(self.invalid)}."
        judged = [verdict for verdict in self.verdicts if verdict.ok is not None]
        missed = [verdict.words for verdict in judged if not verdict.ok]
        if missed:
            more = f"; and {len(missed) - _MOST_NAMED} more" if len(missed) > _MOST_NAMED else ""
            named = "; ".join(missed[:_MOST_NAMED])
            return f"Failed: {len(missed)} of {count(len(judged), 'bound')} missed. {named}{more}."
        if not judged:
            return "Passed, but nothing was judged: no bound of the scenario has a measured figure."
        return f"Passed: {len(judged)} of {count(len(judged), 'bound')} kept."


def judge(run: Run, summary: Summary) -> Verdicts:
    """Hold `summary` to the scenario of `run`. A percentile must be strictly below its bound.

    Raises:
        ValueError: `run.scenario` is not a scenario.
    """
    scenario = Scenario.model_validate(run.scenario)
    verdicts = [*_latencies(scenario, summary), *_errors(scenario, summary)]
    for fleet in summary.fleets:
        of = f" of {fleet.model}" if len(summary.fleets) > 1 else ""
        verdicts += _scaling(scenario.scaling, fleet, of)
    invalid = (*_incomplete(run), *_late(run, scenario.client), *_unseen(scenario, summary))
    failed = any(verdict.ok is False for verdict in verdicts)
    overall: Overall = "invalid" if invalid else "fail" if failed else "pass"
    return Verdicts(overall=overall, verdicts=tuple(verdicts), invalid=invalid)


def _latencies(scenario: Scenario, summary: Summary) -> Iterator[Verdict]:
    slos, measured = scenario.slos, summary.latencies
    for name, unit, bounds, latency, without in (
        ("ttft_ms", "ms", slos.ttft_ms, measured.ttft, "no request was sent"),
        (
            "warm_ttft_ms",
            "ms",
            slos.warm_ttft_ms,
            measured.ttft_warm,
            "every request was queued for a cold start",
        ),
        (
            "cold_wait_s",
            "s",
            slos.cold_wait_s,
            measured.cold_wait,
            "no request was queued for a cold start for over 0.5 s",
        ),
        ("itl_ms", "ms", slos.itl_ms, measured.itl, "no answer had two pieces"),
        (
            "hundred_tokens_s",
            "s",
            slos.hundred_tokens_s,
            measured.hundred_tokens,
            "no request wants 100 tokens",
        ),
    ):
        if bounds is None:
            continue
        for at, bound in bounds:
            key = f"slos.{name}.{at}"
            if bound is None:
                continue
            if latency is not None:
                yield _below(key, unit, bound, getattr(latency, at) * (1000 if unit == "ms" else 1))
            elif name == "itl_ms" and summary.counts.errors > 0:
                yield _below(key, unit, bound, math.inf)  # errors are the reason for having no gap
            else:
                yield Verdict(key, unit, bound, None, None, f"{key} is not judged: {without}")


def _below(name: str, unit: str, bound: float, value: float) -> Verdict:
    ok = value < bound
    relation = "is below" if ok else "is not below"
    shown, limit = figure(value, unit), figure(bound, unit)
    if shown == limit and value != bound:
        shown = figure(value, unit, digits=7)
    return Verdict(name, unit, bound, value, ok, f"{name} = {shown} {relation} {limit}")


def _errors(scenario: Scenario, summary: Summary) -> Iterator[Verdict]:
    counts = summary.counts
    if scenario.slos.error_rate is not None and counts.requests:
        yield _below("slos.error_rate", "share", scenario.slos.error_rate, counts.error_rate)
    most = scenario.broken_streams
    if most is not None and counts.requests:
        ok = counts.broken <= most
        relation = "at most" if ok else "more than"
        words = f"broken_streams = {counts.broken:,} is {relation} {most:,}"
        yield Verdict("broken_streams", "count", most, counts.broken, ok, words)


def _scaling(scaling: Scaling, fleet: Fleet, of: str) -> Iterator[Verdict]:
    if scaling.starts_at is not None:
        name, ready = f"scaling.starts_at{of}", fleet.starts_at
        ok = ready == scaling.starts_at
        words = f"{name} = {scaling.starts_at}: {count(ready, 'replica')} ready before the first request"
        yield Verdict(name, "replicas", scaling.starts_at, ready, ok, words)
    if scaling.reaches is not None:
        name, ready = f"scaling.reaches{of}", fleet.peak_ready
        words = f"{name} = {scaling.reaches}: {count(ready, 'replica')} ready at once at most"
        yield Verdict(name, "replicas", scaling.reaches, ready, ready >= scaling.reaches, words)
    if scaling.returns_to is not None:
        name, took = f"scaling.returns_to{of}", fleet.returned_s
        value = math.inf if took is None else took
        when = "never after" if took is None else f"{figure(took, 's')} after"
        words = f"{name} = {scaling.returns_to}: {when} the last answer; within_s = {scaling.within_s:g}"
        yield Verdict(name, "s", scaling.within_s, value, value <= scaling.within_s, words)


def _incomplete(run: Run) -> Iterator[str]:
    if run.unmet:
        yield f"it could not begin as the scenario demands: {run.unmet}"
    if run.interrupted:
        yield f"it ended early: {run.interrupted}"
    if not run.records:
        yield "no request was sent"


def _late(run: Run, client: Client) -> Iterator[str]:
    """The client's own lag; an unknown figure is as bad as one that is too large."""
    kept = run.timekeeping
    for what, value, name, bound in (
        ("99 % of requests left within", kept.sent_p99_ms, "lag_p99_ms", client.lag_p99_ms),
        ("the latest request left after", kept.sent_max_ms, "lag_max_ms", client.lag_max_ms),
        ("99 % of events were noticed within", kept.noticed_p99_ms, "lag_p99_ms", client.lag_p99_ms),
        ("the latest event was noticed after", kept.noticed_max_ms, "lag_max_ms", client.lag_max_ms),
    ):
        if run.records and not value <= bound:
            shown = "an unknown time" if math.isnan(value) else f"{value:.3g} ms"
            yield f"the client lagged: {what} {shown}, more than client.{name} = {bound:g}"


def _unseen(scenario: Scenario, summary: Summary) -> Iterator[str]:
    """Demands on replicas whose counts the server did not report, or that began with a wrong number."""
    wanted = {name: getattr(scenario.scaling, name) for name in ("starts_at", "reaches", "returns_to")}
    demands = ", ".join(f"scaling.{name} = {value}" for name, value in wanted.items() if value is not None)
    seen = {fleet.model for fleet in summary.fleets}
    for model in summary.by_model:
        if demands and model not in seen:
            yield f"the server reported no replica counts for {model}, which {demands} needs"
    for fleet in summary.fleets:
        if wanted["starts_at"] not in (None, fleet.starts_at):
            ready = f"{count(fleet.starts_at, 'replica')} of {fleet.model} ready before the first request"
            yield f"{ready}, scaling.starts_at = {wanted['starts_at']}"
