"""One replay, timed, in a process of its own: `python -m benchmarks.replay_speed.timed`."""

from __future__ import annotations

import json
import resource
import sys
import time
from dataclasses import asdict, dataclass

from benchmarks.replay_speed.traffic import Repeated, Swinging
from loadtests.traces import open_trace
from loadtests.traces.trace import Trace
from replay.controller import Controller, Sampled
from replay.fleet.fleet import Conditions
from replay.laws.registry import Engines, make
from replay.production import Production
from replay.profile import Profile
from replay.profile_files import load_profile
from replay.result import Result
from replay.simulation import simulate
from serve_app.settings.knobs import Knobs

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
