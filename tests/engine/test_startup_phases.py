import json
import logging
import math
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from serve_app import env
from serve_app.engine.startup_phases import Startup, busy_seconds, created, process_seconds, process_start


@dataclass
class Told:
    """What a start-up published, on clocks that go where the test sets them."""

    documents: list[dict[str, Any]] = field(default_factory=list)
    wall: float = 1_700_000_000.0
    elapsed: float = 50.0

    def startup(self) -> Startup:
        def publish(document: str) -> None:
            self.documents.append(json.loads(document))

        return Startup("tide", publish, wall=lambda: self.wall, clock=lambda: self.elapsed)

    def passes(self, seconds: float) -> None:
        self.wall += seconds
        self.elapsed += seconds


def test_each_phase_is_told_when_it_begins_with_what_the_ones_before_took() -> None:
    told = Told()
    startup = told.startup()

    with startup.phase("imports"):
        told.passes(7.5)
    with startup.phase("weights_and_kv_cache"):
        told.passes(2.25)
    startup.finish()

    assert told.documents == [
        {"phase": "imports", "since": 1_700_000_000.0, "durations_s": {}, "warm_node": False, "identity": ""},
        {
            "phase": "weights_and_kv_cache",
            "since": 1_700_000_007.5,
            "durations_s": {"imports": 7.5},
            "warm_node": False,
            "identity": "",
        },
        {
            "phase": "ready",
            "since": 1_700_000_009.75,
            "durations_s": {"imports": 7.5, "weights_and_kv_cache": 2.25},
            "warm_node": False,
            "identity": "",
        },
    ]


def test_a_clock_that_is_set_meanwhile_does_not_change_what_a_phase_took() -> None:
    told = Told()
    startup = told.startup()

    with startup.phase("imports"):
        told.elapsed += 3.0
        told.wall -= 3600.0

    assert startup.durations == {"imports": 3.0}


def test_a_phase_entered_twice_adds_up() -> None:
    told = Told()
    startup = told.startup()

    for seconds in (1.0, 2.0):
        with startup.phase("imports"):
            told.passes(seconds)

    assert startup.durations == {"imports": 3.0}


def raises(error: BaseException) -> Callable[[], None]:
    def block() -> None:
        raise error

    return block


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError("no such model"), "OSError: no such model"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt: "),
    ],
)
def test_a_failure_is_told_with_its_phase_and_reason_and_goes_on(error: BaseException, reason: str) -> None:
    told = Told()
    startup = told.startup()
    with startup.phase("imports"):
        told.passes(7.0)

    with pytest.raises(type(error)), startup.phase("weights_and_kv_cache"):
        raises(error)()

    assert told.documents[-1] == {
        "phase": "failed",
        "since": 1_700_000_007.0,
        "durations_s": {"imports": 7.0},
        "warm_node": False,
        "identity": "",
        "during": "weights_and_kv_cache",
        "reason": reason,
    }


def test_a_reason_without_end_is_cut() -> None:
    told = Told()

    with pytest.raises(OSError, match="x"), told.startup().phase("imports"):
        raises(OSError("x" * 1_000_000))()

    assert len(told.documents[-1]["reason"]) == 2000


def test_a_hint_follows_the_reason_of_a_failure() -> None:
    told = Told()
    startup = told.startup()
    startup.hint = "vLLM 0.99.0 has not been checked."

    with pytest.raises(OSError, match="gone"), startup.phase("weights_and_kv_cache"):
        raises(OSError("gone"))()

    assert told.documents[-1]["reason"] == "OSError: gone (vLLM 0.99.0 has not been checked.)"


def test_readiness_is_one_log_line_with_every_phase(caplog: pytest.LogCaptureFixture) -> None:
    told = Told()
    startup = told.startup()
    for name, seconds in (("imports", 7.5), ("warm_up", 0.25)):
        with startup.phase(name):
            told.passes(seconds)

    with caplog.at_level(logging.INFO, "ray.serve"):
        startup.finish()

    assert caplog.messages[-1:] == [
        "model tide: ready after 7.75 s on a cold node (imports 7.50 s, warm_up 0.25 s)"
    ]


def test_what_was_over_before_comes_first_in_every_document_and_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = Told()
    startup = Startup(
        "tide", lambda document: told.documents.append(json.loads(document)), durations={"process": 1.25}
    )

    with caplog.at_level(logging.INFO, "ray.serve"):
        with startup.phase("imports"):
            pass
        startup.finish()

    assert told.documents[0]["durations_s"] == {"process": 1.25}
    assert list(told.documents[-1]["durations_s"]) == ["process", "imports"]
    assert "(process 1.25 s, imports " in caplog.messages[-1]


def test_a_process_tells_when_it_was_created() -> None:
    before = time.time()
    with subprocess.Popen(["sleep", "60"]) as child:
        assert before - 0.02 <= created(child.pid) <= time.time()
        child.kill()
    with pytest.raises(ProcessLookupError):
        created(child.pid)


@pytest.mark.parametrize(("age", "seconds"), [(0.0, 0.0), (1.75, 1.75), (30.0, 30.0), (30.5, 0.0)])
def test_a_process_that_was_there_long_before_cost_nothing(age: float, seconds: float) -> None:
    assert process_seconds(1_700_000_000.0, 1_700_000_000.0 + age) == seconds


def test_a_clock_set_back_makes_no_start_below_zero() -> None:
    assert process_seconds(1_700_000_000.0, 1_699_999_000.0) == 0.0


FORK = 98.0
"""When the process was created: two seconds ago."""


@pytest.mark.parametrize(
    ("asked_at", "zygote_ready_at", "created", "process_s", "warm_node"),
    [
        (97.5, 50.0, FORK, 2.5, True),
        # The zygote was still importing, so the wait for it is part of this start, however long it was.
        (38.0, 97.5, FORK, 62.0, False),
        # The process waited for the zygote, but was at hand long before this start.
        (20.0, 30.0, 31.0, 0.0, True),
        # Nothing forked it.
        (98.0, None, FORK, 2.0, False),
        (None, None, FORK, 2.0, False),
        (None, None, 31.0, 0.0, False),
    ],
)
def test_a_node_is_warm_if_its_zygote_had_imported_everything_before_the_start(
    asked_at: float | None, zygote_ready_at: float | None, created: float, process_s: float, warm_node: bool
) -> None:
    given = {env.PROCESS_ASKED_AT: asked_at, env.ZYGOTE_READY_AT: zygote_ready_at}
    environment = {name: str(value) for name, value in given.items() if value is not None}

    assert process_start(environment, created, now=100.0, busy_s=2.0) == (process_s, warm_node)


@pytest.mark.parametrize(
    ("busy_s", "process_s"),
    [
        (0.4, 0.0),
        (19.0, 20.5),  # it was at work all the time, or waited for a core: so long does Ray's script take
        (math.inf, 20.5),  # nothing is known of it
    ],
)
def test_a_fork_that_was_idle_had_been_started_in_advance(busy_s: float, process_s: float) -> None:
    environment = {env.PROCESS_ASKED_AT: "79.5", env.ZYGOTE_READY_AT: "50.0"}

    assert process_start(environment, 80.0, now=100.0, busy_s=busy_s) == (process_s, True)


def test_a_process_that_was_not_forked_is_timed_however_long_it_was_idle() -> None:
    assert process_start({}, 80.0, now=100.0, busy_s=0.4) == (20.0, False)


def schedstat(monkeypatch: pytest.MonkeyPatch, text: str | OSError) -> None:
    """Stands in for the kernel's statistics of this process."""

    def read(path: Path, encoding: str) -> str:
        assert str(path) == "/proc/self/schedstat"
        if isinstance(text, OSError):
            raise text
        return text

    monkeypatch.setattr(Path, "read_text", read)


def test_a_process_is_busy_while_it_runs_or_waits_for_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    schedstat(monkeypatch, "1200000000 300000000 77\n")

    assert busy_seconds() == 1.5


@pytest.mark.parametrize("text", [FileNotFoundError(), "0 0 0\n"], ids=["not_kept", "switched_off"])
def test_without_the_kernel_s_statistics_no_process_counts_as_idle(
    monkeypatch: pytest.MonkeyPatch, text: str | OSError
) -> None:
    schedstat(monkeypatch, text)

    assert busy_seconds() == math.inf


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel keeps no such statistics")
def test_a_process_that_is_busy_says_so() -> None:
    before, used = busy_seconds(), time.thread_time()
    while time.thread_time() - used < 0.02:
        os.getpid()

    assert busy_seconds() >= before + 0.015
