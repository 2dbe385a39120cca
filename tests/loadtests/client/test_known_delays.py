"""The client's figures against those of a server whose delays are known."""

import contextlib
import os
from collections.abc import Iterator

import numpy as np
import pytest

from loadtests.record import Run
from loadtests.summary import summarize
from tests.loadtests.client.driving import Driven, Scripted, Stub, driven, planned, target

PERCENTS = (50, 95, 99)
BOUND_MS = 2.0
KINDS = [("fast", 40, 101, 0.01), ("slow", 28, 31, 0.02), ("slowest", 12, 15, 0.05)]
"""Of each: requests, tokens and ITL. Gaps are 80 %, 17 % and 3 %: each percentile lies within one kind."""
TTFTS = [0.03] * 17 + [0.08] * 7 + [0.2]
OVER_S = 1.3
GOES = 4
Asked = tuple[int, float, float, int]
"""(index, at, ITL, tokens)"""


def mixed() -> list[Asked]:
    """160 requests over 2.6 s, some 50 of them at once."""
    kinds = [(itl, tokens) for _, count, tokens, itl in KINDS for _ in range(count)] * 2
    order = np.random.default_rng(0).permutation(len(kinds))
    return [(i, i * 2 * OVER_S / len(kinds), *kinds[j]) for i, j in enumerate(order)]


def percentiles_ms(seconds: list[float]) -> np.ndarray:
    return np.percentile(np.array(seconds) * 1e3, PERCENTS)


def gaps(times: list[float] | tuple[float, ...]) -> list[float]:
    return [float(gap) for gap in np.diff(times)]


def as_run(driven: Driven) -> Run:
    """What a report would be made of."""
    scenario = {"name": "known-delays", "closed": {"streams": 1, "for_s": 1}, "requests": [{}]}
    records = tuple(driven.records[index] for index in sorted(driven.records))
    return Run(scenario, "", "", driven.begin, 5.0, records, (), (), driven.timekeeping)


@contextlib.contextmanager
def first_in_line(*pids: int) -> Iterator[None]:
    """Where it is allowed, let the client and the server go before whatever else the machine does."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(PermissionError):
            for pid in (0, *pids):
                before = os.getpriority(os.PRIO_PROCESS, pid)
                os.setpriority(os.PRIO_PROCESS, pid, -20)
                stack.callback(os.setpriority, os.PRIO_PROCESS, pid, before)
        yield


def off_by(run: Driven, wrote: list[list[float]], requests: list[Asked]) -> dict[str, np.ndarray]:
    """How far the client's percentiles are from the server's log and from what was asked, ms."""
    told = summarize(as_run(run)).latencies
    assert told.ttft is not None
    assert told.itl is not None
    seen_ttft = np.array([told.ttft.p50, told.ttft.p95, told.ttft.p99]) * 1e3
    seen_itl = np.array([told.itl.p50, told.itl.p95, told.itl.p99]) * 1e3
    due = [run.begin + at for _, at, _, _ in requests]
    return {
        "TTFT, server's": seen_ttft
        - percentiles_ms([times[0] - at for times, at in zip(wrote, due, strict=True)]),
        "ITL, server's": seen_itl - percentiles_ms([gap for times in wrote for gap in gaps(times)]),
        "TTFT, nominal": seen_ttft - percentiles_ms([TTFTS[i % len(TTFTS)] for i, _, _, _ in requests]),
        "ITL, nominal": seen_itl
        - percentiles_ms([itl for _, _, itl, tokens in requests for _ in range(tokens - 1)]),
    }


def test_percentiles_are_those_of_the_server_within_two_milliseconds(stub: Stub) -> None:
    """A machine that stalls by itself gets another go, if the client's timekeeping or the log says it did.

    Even then no figure may be further from the server's log than the client says it was late, and in one
    of the goes all must be within the bound of that log; the server cannot be made to keep its own times.
    One late look is a stall: a P99 of TTFT over 160 requests is that of two of them, and on a busy machine
    one was noticed 2.8 ms late while the P99 of all looks was 0.8 ms.
    """
    requests = mixed()
    for attempt in range(GOES):
        where = target(stub.url, seed=100 + attempt)
        prompts = Scripted(
            where, {i: {"ttft_s": TTFTS[i % len(TTFTS)], "itl_s": itl} for i, _, itl, _ in requests}
        )
        plan = [planned(i, at, output_tokens=tokens) for i, at, _, tokens in requests]
        with first_in_line(stub.pid):
            run = driven(plan, where, prompts=prompts)
        assert {record.outcome for record in run.records.values()} == {"answered"}
        stub.wait_for((attempt + 1) * len(plan))  # it writes its record after the last bytes
        served = stub.all_served()
        wrote = [served[prompts.text(one)[:80]][0]["written_s"] for one in plan]
        assert [len(run.records[i].pieces_s) for i in range(len(plan))] == [len(times) for times in wrote]

        off = off_by(run, wrote, requests)
        declared_ms = BOUND_MS + max(run.timekeeping.noticed_max_ms, run.timekeeping.sent_max_ms)
        for name in ("TTFT, server's", "ITL, server's"):
            assert np.abs(off[name]).max() <= declared_ms, f"{name}: off by {off[name]}, {run.timekeeping}"
        wrong = {name: apart for name, apart in off.items() if np.abs(apart).max() > BOUND_MS}
        if not wrong:
            return
        if "TTFT, server's" not in wrong and "ITL, server's" not in wrong:
            return
        late = max(run.timekeeping.noticed_max_ms, run.timekeeping.sent_max_ms) > BOUND_MS
        assert late, f"off by {wrong} on a machine that kept time: {run.timekeeping}"
    pytest.skip(f"the machine kept no time in {GOES} goes: off by {wrong}, {run.timekeeping}")
