"""A bench without a server, and outcomes of made-up stages."""

from pathlib import Path
from typing import Any

from benchmarks.gpu_proof.bench import Bench
from benchmarks.gpu_proof.options import Options, parse
from benchmarks.gpu_proof.outcome import Outcome
from benchmarks.gpu_proof.proof import Stage
from benchmarks.gpu_proof.store import Store

IDENTITY = {"device": "cpu", "gpu": "none", "model": "embedded", "processor": "a processor"}


def options(folder: Path, names: tuple[str, ...], *more: str) -> Options:
    return parse(["--device", "cpu", "--out", str(folder), *more], names, names[:1])


def bench(folder: Path, stages: tuple[Stage, ...], *more: str, lines: list[str] | None = None) -> Bench:
    names = tuple(stage.name for stage in stages)
    store = Store(folder, IDENTITY)
    store.write_machine({"gpus": []})
    said = [] if lines is None else lines
    return Bench(options(folder, names, *more), store, {"gpus": []}, said.append)


def done(stage: str, **figures: Any) -> Outcome:
    return Outcome(stage, "done", "", "2026-01-02T03:04:05+00:00", 1.0, figures)
