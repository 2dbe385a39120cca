"""The start of a replica: phases, the start of its process, priority."""

import json
import logging
import math
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from serve_app import env
from serve_app.engine.startup import (
    STARTING,
    Startup,
    busy_seconds,
    created,
    lower_priority,
    may_undo,
    process_phase,
)


class Published:
    """The documents of a start, on clocks that go where the test sets them."""

    def __init__(self) -> None:
        self.documents: list[dict[str, Any]] = []
        self.wall = 1_700_000_000.0
        self.elapsed = 50.0

    def startup(self, **fields: Any) -> Startup:
        def publish(document: str) -> None:
            self.documents.append(json.loads(document))

        return Startup("tide", publish, wall=lambda: self.wall, clock=lambda: self.elapsed, **fields)

    def pass_time(self, seconds: float) -> None:
        self.wall += seconds
        self.elapsed += seconds


def test_each_phase_is_published_at_its_beginning_with_earlier_durations(
    caplog: pytest.LogCaptureFixture,
) -> None:
    published = Published()
    startup = published.startup(durations={"process": 1.25}, warm_node=True, engine_identity="tiny")
    always = {"warm_node": True, "identity": "tiny"}

    with caplog.at_level(logging.INFO, "ray.serve"):
        for name, seconds in (("imports", 7.5), ("weights", 2.25), ("imports", 1.0)):
            with startup.phase(name):
                published.pass_time(seconds)
                published.wall -= 3600.0  # a clock that is set changes no duration
        startup.finish()

    begun = {"process": 1.25}
    all_of_it = {"process": 1.25, "imports": 8.5, "weights": 2.25}
    assert published.documents == [
        {"phase": "imports", "since": 1_700_000_000.0, "durations_s": begun, **always},
        {"phase": "weights", "since": 1_699_996_407.5, "durations_s": begun | {"imports": 7.5}, **always},
        {
            "phase": "imports",
            "since": 1_699_992_809.75,
            "durations_s": begun | {"imports": 7.5, "weights": 2.25},
            **always,
        },
        {"phase": "ready", "since": 1_699_989_210.75, "durations_s": all_of_it, **always},
    ]
    assert caplog.messages[-1:] == [
        "model tide: ready after 12.00 s on a warm node (process 1.25 s, imports 8.50 s, weights 2.25 s)"
    ]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError("no such model"), "OSError: no such model (unchecked; log: /tmp/worker.err)"),
        (OSError("x" * 1_000_000), f"OSError: {'x' * 1991} (unchecked; log: /tmp/worker.err)"),
        (KeyboardInterrupt(), "KeyboardInterrupt:  (unchecked; log: /tmp/worker.err)"),
    ],
    ids=["error", "long", "interrupt"],
)
def test_failure_is_published_with_phase_reason_hint_and_log(error: BaseException, reason: str) -> None:
    published = Published()
    startup = published.startup()
    startup.hint, startup.log = "unchecked", "/tmp/worker.err"
    with startup.phase("imports"):
        published.pass_time(7.0)

    with pytest.raises(type(error)), startup.phase("weights_and_kv_cache"):
        raise error

    document = published.documents[-1]
    assert (document["phase"], document["during"]) == ("failed", "weights_and_kv_cache")
    assert (document["durations_s"], document["reason"]) == ({"imports": 7.0}, reason)


def test_a_process_tells_when_it_was_created() -> None:
    before = time.time()
    with subprocess.Popen(["sleep", "60"]) as child:
        assert before - 0.02 <= created(child.pid) <= time.time()
        child.kill()
    with pytest.raises(ProcessLookupError):
        created(child.pid)


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
        (None, None, 68.0, 32.0, False),
        (None, None, 67.5, 0.0, False),  # made in advance
        (None, None, 1100.0, 0.0, False),  # the clock was set back
    ],
)
def test_node_is_warm_after_its_zygotes_imports(
    asked_at: float | None, zygote_ready_at: float | None, created: float, process_s: float, warm_node: bool
) -> None:
    given = {env.PROCESS_ASKED_AT: asked_at, env.ZYGOTE_READY_AT: zygote_ready_at}
    environment = {name: str(value) for name, value in given.items() if value is not None}

    assert process_phase(environment, created, now=100.0, busy_s=2.0) == (process_s, warm_node)


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

    assert process_phase(environment, 80.0, now=100.0, busy_s=busy_s) == (process_s, True)
    assert process_phase({}, 80.0, now=100.0, busy_s=busy_s) == (20.0, False)


@pytest.mark.parametrize("busy_s", [99.5, 85.0, math.inf])
def test_long_start_of_a_process_counts_if_it_was_busy(busy_s: float) -> None:
    fork = {env.PROCESS_ASKED_AT: "-0.5", env.ZYGOTE_READY_AT: "-10.0"}

    assert process_phase(fork, 0.0, now=100.0, busy_s=busy_s)[0] == (100.5 if busy_s == 99.5 else 0.0)
    assert process_phase({}, 0.0, now=100.0, busy_s=busy_s)[0] == (0.0 if busy_s == math.inf else 100.0)


@pytest.mark.parametrize(
    ("text", "busy_s"),
    [("1200000000 300000000 77\n", 1.5), (None, math.inf), ("0 0 0\n", math.inf)],
    ids=["kept", "not_kept", "switched_off"],
)
def test_process_is_busy_while_it_runs_or_waits(tmp_path: Path, text: str | None, busy_s: float) -> None:
    statistics = tmp_path / "schedstat"
    if text is not None:
        statistics.write_text(text)

    assert busy_seconds(statistics) == busy_s


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel keeps no such statistics")
def test_a_process_that_is_busy_says_so() -> None:
    before, used = busy_seconds(), time.thread_time()
    while time.thread_time() - used < 0.02:
        os.getpid()

    assert busy_seconds() >= before + 0.015


SCRIPT = """
import os, subprocess, sys, threading
from serve_app.engine.startup import lower_priority

waiting = threading.Event()
before = threading.Thread(target=waiting.wait)
before.start()
def weights(process):
    return {os.getpriority(os.PRIO_PROCESS, int(thread)) for thread in os.listdir(f"/proc/{process}/task")}
with lower_priority(int(sys.argv[1])):
    core = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    print(weights(os.getpid()), weights(core.pid))
print(weights(os.getpid()), weights(core.pid))
waiting.set()
core.communicate(b"\\n")
"""


@pytest.mark.skipif(not may_undo(), reason="needs root, or an RLIMIT_NICE of 20")
@pytest.mark.parametrize("core", [0, 3])
def test_all_threads_have_low_priority_until_ready(core: int) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(core)],
        capture_output=True,
        text=True,
        check=True,
        process_group=0,
        timeout=60,
    )
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    slower, cores = {min(mine + STARTING + core, 19)}, {min(mine + core, 19)}
    assert ran.stdout.splitlines() == [f"{slower} {slower}", f"{ {mine} } {cores}"]


@pytest.mark.parametrize(
    ("limit", "effective", "may"),
    [(20, "0000000000000000", True), (0, "0000000000800000", True), (0, "00000000a80425fb", False)],
)
def test_priority_is_lowered_only_if_it_can_be_restored(
    limit: int, effective: str, may: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"Name:\tx\nCapEff:\t{effective}\n")
    assert may_undo() is may
    if not may:
        before = os.getpriority(os.PRIO_PROCESS, 0)
        with lower_priority(3):
            assert os.getpriority(os.PRIO_PROCESS, 0) == before
        assert os.getpriority(os.PRIO_PROCESS, 0) == before
