"""Run a client against the stub server and compare what it saw with what was done."""

import itertools
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from benchmarks import REPOSITORY
from benchmarks.common.process_tree import cpu_s, pss_bytes, resident_bytes, tree
from benchmarks.load_clients import stub_server
from benchmarks.load_clients.job import Client, Job, Seen, order_of

PERCENTS = (50, 95, 99)
_SAMPLE_S = 0.5


@dataclass(frozen=True, slots=True)
class Usage:
    """What a client's processes took, and when. CPU seconds; times of `time.monotonic`."""

    started_s: float
    ended_s: float
    exit_code: int
    cpu_s: float
    startup_cpu_s: float
    """Before the first request arrived."""
    peak_rss: int
    """Bytes; memory that its processes share is counted for each."""
    peak_pss: int


@dataclass(frozen=True, slots=True)
class Truth:
    """A request as the server saw it."""

    order: int
    arrived_s: float
    ttft_s: float | None
    gaps_s: tuple[float, ...]
    outcome: str
    tokens: int
    comments: int


@contextmanager
def stub(port: int, log: Path, options: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """The server in a process of its own, until the block ends."""
    command = [sys.executable, "-m", stub_server.__name__, "--port", str(port), "--log", str(log), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as process:
        assert process.stdout is not None
        if not process.stdout.readline().startswith("port "):
            raise RuntimeError(f"the stub server did not start: exit code {process.wait()}")
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)


def run(client: Client, job: Job, log: Path, timeout_s: float) -> Usage:
    """Run it to its end, its output in `job.directory`. subprocess.TimeoutExpired if it does not end."""
    samples: list[tuple[float, float, int, int]] = []
    command = client.command(job)
    started = time.monotonic()
    with (job.directory / "output.txt").open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=job.directory)
        ended = threading.Event()
        sampler = threading.Thread(target=_sample, args=(process.pid, samples, ended))
        sampler.start()
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            for below in reversed(tree(process.pid)):
                with suppress(psutil.NoSuchProcess):
                    below.kill()
            raise
        finally:
            ended.set()
            sampler.join()
    arrivals = [truth.arrived_s for truth in truths(log)]
    first = min(arrivals, default=started)
    return Usage(
        started_s=started,
        ended_s=time.monotonic(),
        exit_code=process.returncode,
        cpu_s=max((cpu for _, cpu, _, _ in samples), default=0.0),
        startup_cpu_s=max((cpu for at, cpu, _, _ in samples if at <= first), default=0.0),
        peak_rss=max((rss for _, _, rss, _ in samples), default=0),
        peak_pss=max((pss for _, _, _, pss in samples), default=0),
    )


def _sample(pid: int, samples: list[tuple[float, float, int, int]], ended: threading.Event) -> None:
    while not ended.wait(_SAMPLE_S):
        now = tree(pid)
        samples.append((time.monotonic(), cpu_s(now), resident_bytes(now), pss_bytes(now)))


def truths(log: Path) -> list[Truth]:
    """What the server recorded, in the order of arrival.

    A prompt that does not start with its place in the plan (a client that makes its own) has the place
    in which it arrived.
    """
    rows = sorted((json.loads(line) for line in log.open()), key=lambda row: float(row["arrived_s"]))
    found = []
    for place, row in enumerate(rows):
        written = row["written_s"]
        try:
            order = order_of(row["prompt"])
        except ValueError:
            order = place
        gaps = tuple(after - before for before, after in itertools.pairwise(written))
        first = written[0] - row["arrived_s"] if written else None
        found.append(
            Truth(order, row["arrived_s"], first, gaps, row["outcome"], len(written), row["comments"])
        )
    return found


def lags(job: Job, found: Sequence[Truth]) -> list[float]:
    """Seconds that each request arrived late, beside the least late one; ascending."""
    late = [truth.arrived_s - job.planned[truth.order].at_s for truth in found]
    return sorted(value - min(late) for value in late)


def errors(found: Sequence[Truth], seen: Sequence[Seen]) -> dict[str, list[float] | None]:
    """How far the client's percentiles (50, 95, 99) are from the server's, seconds; None: not recorded."""

    def difference(said: list[float], true: list[float]) -> list[float] | None:
        if not said or not true:
            return None
        apart: list[float] = (np.percentile(said, PERCENTS) - np.percentile(true, PERCENTS)).tolist()
        return apart

    return {
        "ttft": difference(
            [one.ttft_s for one in seen if one.ttft_s is not None],
            [one.ttft_s for one in found if one.ttft_s is not None],
        ),
        "itl": difference(
            [gap for one in seen for gap in one.gaps_s], [gap for one in found for gap in one.gaps_s]
        ),
        "mean itl": difference(
            [one.mean_gap_s for one in seen if one.mean_gap_s is not None],
            [sum(one.gaps_s) / len(one.gaps_s) for one in found if one.gaps_s],
        ),
    }
