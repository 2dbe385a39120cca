"""Runs that look as load tests do: a cold burst, steady traffic, no answer, hostile names, three hours."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from loadtests.record import Outcome, Record, Run, Sample, Timekeeping
from loadtests.scenario import Scenario
from tests.loadtests.made_up_server import MODEL, Behaviour, answers, arrivals

BEGAN = 1_795_255_200.0
MACHINE = {"cpu": "2 cores, x86_64", "memory": "8 GB", "system": "Linux 6.8", "python": "3.11.9"}
VERSIONS = {"tideserve": "0.1.0", "ray": "2.60.0", "vllm": "0.32.0"}
KEPT_TIME = Timekeeping(
    sent_p99_ms=2.1, sent_max_ms=8.4, noticed_p99_ms=1.6, noticed_max_ms=11.0, cpu_share=0.31
)
HOSTILE = '<script>alert("x")</script> & </style><img src=x onerror=alert(1)>'


def scenario(**fields: Any) -> Scenario:
    """A scenario with one kind of request and bounds that a good run keeps."""
    given: dict[str, Any] = {
        "name": "steady",
        "about": "Even traffic on warm replicas.",
        "seed": 7,
        "arrivals": [{"shape": "steady", "for_s": 120, "rate": 5}],
        "requests": [{"kind": "chat", "prompt_tokens": 64, "output_tokens": {"least": 24, "most": 160}}],
        "cost": {"price_per_gpu_hour": 2.5},
    }
    return Scenario.model_validate(given | fields)


def run(of: Scenario, records: Sequence[Record], **fields: Any) -> Run:
    """A run of `of` with `records`, by default without any look at replicas."""
    given: dict[str, Any] = {
        "url": "http://127.0.0.1:8000",
        "began": BEGAN,
        "duration_s": max([0.0, *(record.ended_s for record in records)]),
        "samples": (),
        "decisions": (),
        "timekeeping": KEPT_TIME,
        "machine": MACHINE,
        "versions": VERSIONS,
    }
    return Run(
        scenario=of.model_dump(mode="json"),
        scenario_hash=of.digest(),
        records=tuple(records),
        **(given | fields),
    )


def record(index: int = 0, at_s: float = 0.0, pieces_s: Sequence[float] = (), **fields: Any) -> Record:
    """A request, answered at its last piece unless told otherwise."""
    given: dict[str, Any] = {
        "kind": "chat",
        "model": MODEL,
        "sent_s": at_s + 0.001,
        "ended_s": pieces_s[-1] + 0.001 if pieces_s else at_s + 1.0,
        "outcome": "answered",
        "status": 200,
        "planned_prompt_tokens": 64,
        "planned_output_tokens": len(pieces_s),
        "prompt_tokens": 64,
        "output_tokens": len(pieces_s),
    }
    return Record(index=index, at_s=at_s, pieces_s=tuple(pieces_s), **(given | fields))


def error(outcome: Outcome, status: int, words: str, **fields: Any) -> Record:
    """A request that ended in an error before its first piece."""
    given: dict[str, Any] = {"prompt_tokens": None, "output_tokens": None, "planned_output_tokens": 64}
    return record(outcome=outcome, status=status, error=words, **(given | fields))


def looks(
    until_s: float, changes: Mapping[float, Mapping[str, int]], every_s: float = 1.0
) -> tuple[Sample, ...]:
    """A look every `every_s`, at what `changes` have set until then."""
    out = []
    state = dict.fromkeys(("wanted", "target", "ready", "starting", "pending", "draining"), 0)
    state |= dict.fromkeys(("held", "waiting", "running"), 0)
    due = sorted(changes)
    for at in np.arange(0.0, until_s + every_s / 2, every_s).tolist():
        while due and due[0] <= at:
            state |= changes[due.pop(0)]
        out.append(Sample(at_s=at, model=MODEL, **state))
    return tuple(out)


def decision(seq: int, at_s: float, old: int, new: int, binding: str, reason: str, **fields: Any) -> Any:
    """A record of the policy, in the shape of docs/api.md."""
    given: dict[str, Any] = {
        "seq": seq,
        "at": BEGAN + at_s,
        "deployment": f"Engine-{MODEL}",
        "model": MODEL,
        "kind": "change" if old != new else "heartbeat",
        "mode": "act",
        "old_target": old,
        "new_target": new,
        "wanted": new,
        "ready": old,
        "binding": binding,
        "reason": f"{binding}: {reason}",
        "counterfactual": "not up: max_replicas = 3; down after 15 s below 60.3 requests/s",
        "terms": [{"name": binding, "replicas": new, "why": reason}],
        "clamps": [],
        "signals": {"held_requests": 0.0, "replica_capacity_rps": 30.17},
        "ages_s": {"q7w1zc3e": 0.3},
        "notes": [],
    }
    return given | fields


BURST_DECISIONS = (
    decision(11, 0.6, 0, 1, "queue", "9 requests are waiting; the target is 10 per replica", ready=0),
    decision(
        12,
        1.6,
        1,
        3,
        "queue",
        "30 requests are waiting; the target is 10 per replica",
        ready=0,
        signals={"held_requests": 30.0, "oldest_held_s": 1.5, "replica_capacity_rps": 30.17},
    ),
    decision(13, 11.6, 3, 3, "queue", "30 requests are waiting; the target is 10 per replica", ready=0),
    decision(14, 21.6, 3, 3, "arrivals", "1.4 requests/s arrive (1.4 over 30 s, 0.7 over 60 s)", ready=3),
    decision(15, 166.0, 3, 2, "arrivals", "2.1 requests/s arrive; a replica carries 30.2/s", wanted=1),
    decision(16, 181.0, 2, 1, "arrivals", "1.4 requests/s arrive; a replica carries 30.2/s", wanted=1),
    decision(17, 191.0, 1, 1, "idle", "idle for 9 s of 40 s", wanted=1),
    decision(18, 222.4, 1, 0, "idle", "idle for 40 s of 40 s", counterfactual="up at 1 waiting"),
)


@cache
def cold_burst(seed: int = 7, slower: float = 1.0) -> Run:
    """0 -> 3 -> 0: thirty requests at once on nothing, steady load once replicas are there, then silence.

    A few clients leave, one request is refused and comes through at its second attempt, another never, and
    one stream breaks while a replica drains.
    """
    rng = np.random.default_rng(seed)
    behaviour = Behaviour(slower=slower)
    of = scenario(
        name="cold-burst",
        about="Thirty requests at once with no replica up; three come, and all go again.",
        seed=seed,
        arrivals=[
            {"shape": "burst", "for_s": 40, "requests": 30},
            {"shape": "steady", "for_s": 140, "rate": 3},
            {"shape": "idle", "for_s": 20},
        ],
        requests=[
            {"kind": "chat", "share": 3, "output_tokens": {"least": 24, "most": 160}},
            {
                "kind": "impatient",
                "output_tokens": {"least": 24, "most": 160},
                "leave": {"share": 0.2, "after_tokens": 8},
            },
        ],
        slos={
            "ttft_ms": None,
            "warm_ttft_ms": {"p50": 100, "p95": 200, "p99": 500},
            "cold_wait_s": {"p50": 30, "p99": 60},
            "hundred_tokens_s": None,
            "error_rate": 0.02,
        },
        scaling={"starts_at": 0, "reaches": 3, "returns_to": 0, "within_s": 120},
        broken_streams=1,
    )
    ready = [19.6 * slower + float(rng.normal(0, 0.4)) + late for late in (0.0, 0.5, 1.7)]
    times = arrivals(rng, 40, 140, 3)
    records = answers(rng, [0.0] * 30, behaviour, ready_s=ready)
    records += answers(rng, times, behaviour, first=30)
    for at in range(3, len(records), 4):
        records[at] = replace(records[at], kind="impatient")
    for at in range(35, len(records), 24):
        records[at] = _left(records[at], after=8)
    records[4] = replace(_left(records[4], after=0), ended_s=12.0, cold_wait_s=11.9)
    records[33] = replace(records[33], attempts=2)
    records[60] = error(
        "rejected",
        429,
        "engine_queue_full: Model 'tideserve-tiny': 64 requests wait already.",
        index=60,
        at_s=records[60].at_s,
        attempts=3,
        ended_s=records[60].at_s + 3.2,
    )
    at = max(place for place, one in enumerate(records) if one.at_s < 166 and one.outcome == "answered")
    broken = records[at]
    records[at] = replace(
        broken,
        outcome="broken",
        pieces_s=broken.pieces_s[:9],
        ended_s=broken.pieces_s[8] + 0.05,
        error="replica_lost: the engine replica was lost while it was generating.",
        output_tokens=None,
    )
    samples = looks(
        262.0,
        {
            0.6: {"wanted": 3, "target": 1, "pending": 1, "held": 30},
            1.6: {"target": 3, "starting": 1, "pending": 2},
            2.4: {"starting": 3, "pending": 0},
            ready[0]: {"ready": 1, "starting": 2, "held": 20, "running": 10},
            ready[1]: {"ready": 2, "starting": 1, "held": 10, "running": 20},
            ready[2]: {"ready": 3, "starting": 0, "held": 0, "running": 30},
            24.0: {"wanted": 1, "running": 1},
            166.0: {"target": 2, "ready": 2, "draining": 1},
            168.4: {"draining": 0},
            181.0: {"target": 1, "ready": 1, "draining": 1, "running": 0},
            183.4: {"draining": 0},
            222.4: {"wanted": 0, "target": 0, "ready": 0, "draining": 1},
            224.8: {"draining": 0},
        },
    )
    return run(of, records, duration_s=262.0, samples=samples, decisions=BURST_DECISIONS)


def _left(answer: Record, after: int) -> Record:
    ended = answer.pieces_s[after - 1] if after else answer.pieces_s[0] - 0.01
    return replace(
        answer,
        outcome="left",
        kind="impatient",
        pieces_s=answer.pieces_s[:after],
        ended_s=ended,
        output_tokens=None,
        cached_tokens=None,
    )


@cache
def steady(seed: int = 7, slower: float = 1.0, for_s: float = 120.0, rate: float = 5.0) -> Run:
    """Even traffic on two warm replicas; `slower` is a factor on every latency."""
    rng = np.random.default_rng(seed)
    of = scenario(seed=seed, arrivals=[{"shape": "steady", "for_s": for_s, "rate": rate}])
    records = answers(rng, arrivals(rng, 0, for_s, rate), Behaviour(slower=slower))
    ready = {0.0: {"wanted": 2, "target": 2, "ready": 2, "running": 4}}
    return run(of, records, duration_s=for_s + 3.0, samples=looks(for_s + 3.0, ready))


@cache
def empty() -> Run:
    """Twelve requests, and not one is answered: no replica ever came."""
    of = scenario(
        name="nothing",
        arrivals=[{"shape": "burst", "for_s": 30, "requests": 12, "over_s": 6}],
        scaling={"starts_at": 0, "reaches": 1},
    )
    records = [
        error(
            "failed",
            503,
            "model_unavailable: no replica within 25 s (cold_wait_timeout_s = 25); phase: pending.",
            index=at,
            at_s=at * 0.5,
            ended_s=at * 0.5 + 25.0,
            cold_wait_s=25.0,
            phases=((at * 0.5 + 0.5, "pending"),),
        )
        for at in range(12)
    ]
    pending = {0.6: {"wanted": 1, "target": 1, "pending": 1, "held": 12}}
    refused = decision(2, 0.6, 0, 1, "queue", "2 requests are waiting; the target is 8 per replica", ready=0)
    return run(of, records, duration_s=31.0, samples=looks(31.0, pending), decisions=(refused,))


@cache
def hostile() -> Run:
    """Names, reasons and errors that would be markup if a report let them."""
    kept = cold_burst()
    records = tuple(
        replace(one, model=HOSTILE, kind=HOSTILE, error=HOSTILE if one.error else "") for one in kept.records
    )
    decisions = tuple(
        dict(one) | {"model": HOSTILE, "reason": HOSTILE, "binding": HOSTILE, "counterfactual": HOSTILE}
        for one in kept.decisions
    )
    return replace(
        kept,
        scenario=dict(kept.scenario) | {"about": HOSTILE},
        url=f"http://{HOSTILE}/",
        records=records,
        samples=tuple(replace(look, model=HOSTILE) for look in kept.samples),
        decisions=decisions,
        interrupted=HOSTILE,
        machine={HOSTILE: HOSTILE},
        versions={"tideserve": HOSTILE},
    )


@cache
def long(seed: int = 7, slower: float = 1.0) -> Run:
    """20,000 requests over three hours, in waves, with three replicas that come and go."""
    rng = np.random.default_rng(seed)
    hours = 3
    of = scenario(
        name="three-hours",
        about="Three waves of traffic.",
        seed=seed,
        arrivals=[{"shape": "wave", "for_s": hours * 3600, "rate": 1.85, "swing": 0.6, "period_s": 3600}],
    )
    drawn = np.sort(rng.uniform(0, hours * 3600, 60_000))
    wave = (1 + 0.6 * np.sin(drawn / 3600 * 2 * np.pi - np.pi / 2)) / 1.6
    times = np.sort(rng.permutation(drawn[rng.random(60_000) < wave])[:20_000])
    records = answers(rng, np.round(times, 4).tolist(), Behaviour(slower=slower, tokens=(16, 64)))
    changes: dict[float, dict[str, int]] = {0.0: {"wanted": 1, "target": 1, "ready": 1}}
    decisions = []
    for hour in range(hours):
        for place, (minute, old, new) in enumerate(((14, 1, 2), (22, 2, 3), (41, 3, 2), (50, 2, 1))):
            at = hour * 3600 + minute * 60.0
            up = new > old
            changes[at] = {"wanted": new, "target": new} | (
                {"starting": 1} if up else {"ready": new, "draining": 1}
            )
            changes[at + 20] = {"ready": new, "starting": 0, "draining": 0}
            why = f"{1.2 * new:.3g} requests/s arrive; a replica carries 1.3/s"
            decisions.append(decision(20 + 4 * hour + place, at, old, new, "arrivals", why))
    samples = looks(hours * 3600, changes, every_s=2.0)
    return run(of, records, duration_s=hours * 3600 + 3.0, samples=samples, decisions=tuple(decisions))
