"""The stages in their order, each kept as soon as it ends."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from httpx import HTTPError

from benchmarks.common.progress import say
from benchmarks.common.server_process import ServerError as ProcessError
from benchmarks.gpu_proof.bench import Bench, plain
from benchmarks.gpu_proof.beside_vllm import cold_start, overhead
from benchmarks.gpu_proof.first_requests import eager_start, lost_replica, smoke
from benchmarks.gpu_proof.page import PAGE, to_markdown
from benchmarks.gpu_proof.random_weights import make, parameters
from benchmarks.gpu_proof.step_time import quantization, step_time, tensor_parallel
from benchmarks.gpu_proof.store import CannotError, NeedError, Outcome, State
from benchmarks.gpu_proof.under_load import capacity, prefill_groups, prefix_cache, slo
from benchmarks.serving_overhead.client import LoadError
from loadtests.client.request import SpoiledError
from loadtests.server import ServerError
from replay.capacity.server import MeasurementError
from replay.fit import FitError
from replay.profile import Profile
from replay.run import replay
from serve_app.cli import CommandError
from serve_app.settings.knobs import Knobs
from serve_app.settings.settings_error import SettingsError
from serve_app.settings.tree import EMBEDDED
from serve_app.weights import embedded_model_path
from traces import TraceError, open_trace


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


def find_model(bench: Bench) -> dict[str, Any]:
    """Return the model for vLLM to load, and how. Makes random weights where the options ask for them."""
    options = bench.options
    if options.random_weights is not None:
        shape = options.random_weights
        how = "written" if options.checkpoint else "made up by vLLM while it starts"
        say(f"random weights of {shape} ({parameters(shape) / 1e6:,.1f} million parameters), {how}")
        try:
            folder = make(shape, bench.store.folder.resolve() / "models", checkpoint=options.checkpoint)
        except OSError as error:
            raise CannotError(f"the model cannot be written: {error.strerror}") from None
        return {
            "model": str(folder),
            "title": f"random weights of {shape}, {how}",
            "parameters": parameters(shape),
            "load_format": "auto" if options.checkpoint else "dummy",
        }
    if options.model is None or options.model == EMBEDDED:
        return {"model": str(embedded_model_path()), "title": "the embedded model", "load_format": "auto"}
    folder = Path(options.model)
    if folder.is_dir() and not (folder / "config.json").exists():
        raise CannotError(f"--model = {folder}: the folder has no config.json")
    name = str(folder.resolve()) if folder.is_dir() else options.model
    return {"model": name, "title": options.model, "load_format": "auto"}


def replay_windows(bench: Bench) -> dict[str, Any]:
    """Replay the beginning of every window of the folder `--windows`, ours beside Ray's policy."""
    folder = bench.options.windows
    files = sorted(folder.glob("*.csv*")) if folder.is_dir() else []
    if not files:
        raise CannotError(f"there is no recorded traffic in {folder}; --windows names another folder")
    profile = Profile.model_validate(bench.figures("capacity")["profile"])
    knobs = Knobs.model_validate({"min_replicas": 0, "max_replicas": 64, **bench.targets})
    for_s = bench.seconds(1800.0, 300.0)
    rows = []
    left_out: dict[str, str] = {}
    for file in files:
        for policy in ("ours", "ray:5"):
            say(f"{file.name}: {policy}")
            try:
                trace = open_trace(file, duration_s=for_s)
                result = replay(trace, policy=policy, knobs=knobs, profile=profile)
            except TraceError as error:
                left_out[file.name] = str(error)
                break
            cost = {"gpu_seconds": result.gpu_seconds.total, "attainment": result.attainment}
            rows.append({"window": file.name.partition(".")[0], "policy": policy, **plain(cost)})
    figures: dict[str, Any] = {"replayed_s": for_s, "rows": rows}
    return figures | ({"left out": "; ".join(left_out.values())} if left_out else {})


STAGES = (
    Stage("model", "The model", find_model),
    Stage("smoke", "The first start and the first answer", smoke, ("model",)),
    Stage("eager-start", "A start without CUDA graphs", eager_start, ("model",)),
    Stage("lost-replica", "A killed replica and its successor", lost_replica, ("model",)),
    Stage("cold-start", "Cold start", cold_start, ("model",)),
    Stage("step-time", "The time of an engine step", step_time, ("model",)),
    Stage("capacity", "The capacity of one replica", capacity, ("model", "step-time")),
    Stage("slo", "The SLO table", slo, ("model", "capacity")),
    Stage("prefix-cache", "Shared prompts", prefix_cache, ("model", "capacity")),
    Stage("prefill-groups", "Prompts one by one and in groups", prefill_groups, ("model", "capacity")),
    Stage("tensor-parallel", "Several GPUs for one replica", tensor_parallel, ("model", "step-time")),
    Stage("overhead", "Overhead on top of vLLM", overhead, ("model",)),
    Stage("quantization", "Quantization", quantization, ("model", "step-time")),
    Stage("replay", "Recorded traffic on the measured fleet", replay_windows, ("capacity",)),
)
"""The least known come first, because a lent GPU may go away at any time. Stages of one server follow each
other."""
SMOKE = ("model", "smoke", "step-time")
_FAILURES = (
    NeedError, CommandError, MeasurementError, FitError, SettingsError, ServerError, ProcessError, LoadError,
    SpoiledError, HTTPError, RuntimeError, OSError,
)  # fmt: skip
"""The errors of the measuring parts: a stage that fails does not end the proof."""


def titles() -> dict[str, str]:
    """Return the stages' titles by name, in their order."""
    return {stage.name: stage.title for stage in STAGES}


def prove(
    bench: Bench, stages: Sequence[Stage] = STAGES, clock: Callable[[], float] = time.monotonic
) -> bool:
    """Measure each asked stage that has not been, and return whether none failed.

    A stage that failed is measured again by the next run, as is one that a signal interrupted.
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
                say(f"{stage.name}: measured on {known.began}")
                continue
            outcome = _measure(bench, stage, clock)
            bench.store.keep(outcome)
            write_page(bench)
            well = well and outcome.state != "failed"
            ended = f"{outcome.state}: {outcome.why}" if outcome.why else outcome.state
            say(f"{stage.name}: {ended} (after {outcome.took_s:.0f} s)")
    finally:
        bench.stop()
    return well


def write_page(bench: Bench) -> Path:
    """Write the document and the page of the stages that have ended, and return the page."""
    page = bench.store.folder / PAGE
    page.write_text(to_markdown(bench.store.write_document(titles())), encoding="utf-8")
    return page


def _measure(bench: Bench, stage: Stage, clock: Callable[[], float]) -> Outcome:
    began, start = datetime.now(UTC).isoformat(timespec="seconds"), clock()
    say(f"{stage.name}: {stage.title}")
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
