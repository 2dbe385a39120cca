"""The stages in their order, each kept as soon as it ends."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from subprocess import SubprocessError
from typing import Any

from httpx import HTTPError

from benchmarks.common.server_process import ServerError as ProcessError
from benchmarks.gpu_proof.bench import Bench
from benchmarks.gpu_proof.capacity import capacity
from benchmarks.gpu_proof.cold_start import cold_start
from benchmarks.gpu_proof.model import find_model
from benchmarks.gpu_proof.outcome import CannotError, NeedError, Outcome, State
from benchmarks.gpu_proof.overhead import overhead
from benchmarks.gpu_proof.prefill_groups import prefill_groups
from benchmarks.gpu_proof.prefix_cache import prefix_cache
from benchmarks.gpu_proof.replayed import replayed
from benchmarks.gpu_proof.slo import slo
from benchmarks.gpu_proof.step_time import step_time
from benchmarks.gpu_proof.variants import quantization, tensor_parallel
from loadtests.client.request import SpoiledError
from loadtests.server import ServerError
from replay.capacity.server import MeasurementError
from replay.fit import FitError
from serve_app.cli.command_error import CommandError
from serve_app.settings.settings_error import SettingsError


@dataclass(frozen=True, slots=True)
class Stage:
    """One part of the proof."""

    name: str
    title: str
    measure: Callable[[Bench], dict[str, Any]]
    """Returns figures as plain data, with times in seconds and rates per second.

    Raises:
        CannotError: where the machine or the model lacks what the stage is about.
    """
    needs: tuple[str, ...] = ()
    """Stages whose figures it reads."""


STAGES = (
    Stage("model", "The model", find_model),
    Stage("step-time", "The time of an engine step", step_time, ("model",)),
    Stage("capacity", "The capacity of one replica", capacity, ("model", "step-time")),
    Stage("slo", "The SLO table", slo, ("model", "capacity")),
    Stage("prefix-cache", "Shared prompts", prefix_cache, ("model", "capacity")),
    Stage("prefill-groups", "Prompts alone and in groups", prefill_groups, ("model", "capacity")),
    Stage("cold-start", "Cold start", cold_start, ("model",)),
    Stage("overhead", "Overhead on top of vLLM", overhead, ("model",)),
    Stage("quantization", "Quantization", quantization, ("model", "step-time")),
    Stage("tensor-parallel", "Several GPUs for one replica", tensor_parallel, ("model", "step-time")),
    Stage("replay", "Recorded traffic on the measured fleet", replayed, ("capacity",)),
)
"""Those that use the same server follow each other; what says most comes first."""
SMOKE = ("model", "step-time")
_FAILURES = (
    NeedError, CommandError, MeasurementError, FitError, SettingsError, ServerError, ProcessError,
    SpoiledError, HTTPError, SubprocessError, RuntimeError, OSError,
)  # fmt: skip
"""What the measuring parts raise: a stage that fails does not end the proof."""


def titles() -> dict[str, str]:
    """Return the stages' titles by name, in their order."""
    return {stage.name: stage.title for stage in STAGES}


def prove(
    bench: Bench, stages: Sequence[Stage] = STAGES, clock: Callable[[], float] = time.monotonic
) -> bool:
    """Measure each asked stage that has not been, and return whether none failed.

    A stage that failed is measured again by the next run, as is one that a signal cut off.
    """
    well = True
    try:
        for stage in stages:
            if stage.name not in bench.options.stages:
                continue
            if stage.name in bench.options.again:
                bench.store.forget(stage.name)
            known = bench.store.outcome(stage.name)
            if known is not None and known.state != "failed":
                bench.say(f"{stage.name}: measured on {known.began}")
                continue
            outcome = _measured(bench, stage, clock)
            bench.store.keep(outcome)
            bench.store.write_document(titles())
            well = well and outcome.state != "failed"
            told = f"{outcome.state}: {outcome.why}" if outcome.why else outcome.state
            bench.say(f"{stage.name}: {told} (after {outcome.took_s:.0f} s)")
    finally:
        bench.stop()
    return well


def _measured(bench: Bench, stage: Stage, clock: Callable[[], float]) -> Outcome:
    began, start = datetime.now(UTC).isoformat(timespec="seconds"), clock()
    bench.say(f"{stage.name}: {stage.title}")
    state: State = "done"
    why, found = "", {}
    try:
        for need in stage.needs:
            bench.figures(need)
        found = stage.measure(bench)
    except CannotError as error:
        state, why = "cannot", str(error)
    except _FAILURES as error:
        bench.stop()  # it may be what failed
        state, why = "failed", str(error) or type(error).__name__
    return Outcome(stage.name, state, why, began, round(clock() - start, 1), found)
