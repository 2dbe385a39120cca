"""One replay of made-up traffic, timed, in its own process: `python -m benchmarks.replay_speed.timed`."""

import json
import math
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np

from loadtests.traces import open_trace
from loadtests.traces.chunks import part
from loadtests.traces.trace import CHUNK_REQUESTS, Chunk, Trace
from replay.fleet.conditions import Conditions
from replay.policies import Engines, make
from replay.production import Production
from replay.profile import Profile, load_profile
from replay.result import Result
from replay.simulation import Controller, Sampled, simulate
from serve_app.settings.knobs import Knobs

_MEAN_RPS = 33.0
_SWING = 0.5
_PERIOD_S = 3600.0


class Swinging:
    """Poisson arrivals at a rate that swings every hour between 22 and 66 a second, all from one seed.

    Prompts and answers are log-normal: 1,000 and 180 tokens on average, prompts at most 2,048.
    """

    name = "swinging"
    block_tokens = 0

    def __init__(self, requests: int, seed: int = 0) -> None:
        self._requests = requests
        self._seed = seed
        self._given = 0

    def chunks(self) -> Iterator[Chunk]:
        """See `Trace`."""
        draw = np.random.default_rng(self._seed)
        at = 0.0
        for start in range(0, self._requests, CHUNK_REQUESTS):
            count = min(CHUNK_REQUESTS, self._requests - start)
            # Evenly first; then time itself is bent, which makes them slower and faster.
            even = at + np.cumsum(draw.exponential(1.0 / _MEAN_RPS, count))
            at = float(even[-1])
            bend = _SWING * _PERIOD_S / (2 * math.pi)
            arrivals = even + bend * (1.0 - np.cos(2 * math.pi * even / _PERIOD_S))
            prompts = np.clip(np.exp(draw.normal(6.9, 0.8, count)), 1, 2048).astype(np.int64)
            outputs = np.clip(np.exp(draw.normal(4.8, 0.9, count)), 1, 2048).astype(np.int64)
            self._given = start + count
            yield Chunk(arrivals, prompts, outputs)

    def progress(self) -> float:
        """See `Trace`."""
        return self._given / self._requests


class Repeated:
    """A trace again and again, end to end, up to a number of requests."""

    def __init__(self, trace: Trace, requests: int) -> None:
        self._trace = trace
        self._requests = requests
        self._given = 0
        self.name = f"{trace.name} repeated"
        self.block_tokens = trace.block_tokens

    def chunks(self) -> Iterator[Chunk]:
        """See `Trace`."""
        self._given = 0
        start_s = end_s = 0.0
        while self._given < self._requests:
            for chunk in self._trace.chunks():
                left = self._requests - self._given
                if not left:
                    return
                moved = replace(chunk, arrival_s=chunk.arrival_s + start_s)
                self._given += min(left, len(moved))
                yield moved if left >= len(moved) else part(moved, 0, left)
                end_s = float(moved.arrival_s[-1])
            start_s = end_s

    def progress(self) -> float:
        """See `Trace`."""
        return self._given / self._requests


_INITIAL = 12


@dataclass(frozen=True, slots=True)
class Timed:
    """The time and memory of one replay."""

    policy: str
    requests: int
    compile_s: float
    """Seconds of the processor until the simulator could be called."""
    cpu_s: float
    wall_s: float
    before_mib: float
    peak_mib: float
    hours: float
    """Length of the trace."""
    attainment: float

    @property
    def per_second(self) -> float:
        """Requests replayed in a second of one core."""
        return self.requests / self.cpu_s


def timed(policy: str, requests: int, path: str) -> Timed:
    """Replay so many requests of the trace at `path`, or made-up ones, under `policy`."""
    profile, knobs = load_profile("a100-80gb"), Knobs(min_replicas=0, max_replicas=32)
    began = time.process_time()
    _replay(Swinging(20), policy, profile, knobs)
    compile_s = time.process_time() - began
    before = _peak_mib()
    trace = Repeated(open_trace(path), requests) if path else Swinging(requests)
    began, wall = time.process_time(), time.perf_counter()
    result = _replay(trace, policy, profile, knobs)
    return Timed(
        policy=result.policy,
        requests=result.requests,
        compile_s=compile_s,
        cpu_s=time.process_time() - began,
        wall_s=time.perf_counter() - wall,
        before_mib=before,
        peak_mib=_peak_mib(),
        hours=result.duration_s / 3600.0,
        attainment=result.attainment,
    )


def _replay(trace: Trace, policy: str, profile: Profile, knobs: Knobs) -> Result:
    controller: Controller
    controller = Production(knobs) if policy == "ours" else Sampled(make(policy, Engines(profile.step)))
    conditions = Conditions(knobs.ttft_target_s, knobs.itl_target_s, profile.cold_start_s)
    return simulate(trace, controller, profile, conditions, bounds=(0, 32), initial=_INITIAL)


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    print(json.dumps(asdict(timed(sys.argv[1], int(sys.argv[2]), sys.argv[3]))))
