"""The command line of the proof."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks import REPOSITORY
from benchmarks.gpu_proof.random_weights import SHAPES

Device = Literal["gpu", "cpu"]
_USUAL_MINUTES = 25.0
_MINUTES = (2.0, 240.0)


@dataclass(frozen=True, slots=True)
class Options:
    """A checked command line."""

    device: Device
    model: str | None
    """A folder or a Hugging Face id; None for random weights, or on the CPU for the embedded model."""
    random_weights: str | None
    """The name of a shape, where the weights are made up."""
    checkpoint: bool
    """Write random weights to disk, so that loading them is measured too."""
    minutes: float
    stages: tuple[str, ...]
    again: tuple[str, ...]
    """Stages to measure although they have been."""
    price: float
    """US dollars of one GPU for an hour; 0 if unknown."""
    windows: Path
    """Recorded traffic for the replay."""
    out: Path

    @property
    def pace(self) -> float:
        """By how much measurements are longer than in the usual 25 minutes."""
        return self.minutes / _USUAL_MINUTES


def parse(argv: list[str], stages: tuple[str, ...], smoke: tuple[str, ...]) -> Options:
    """Parse and check; argparse prints what is wrong and exits with 2."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_proof",
        description="Measures Tideserve with one model on one machine, stage by stage. Each stage is kept "
        "at once; the next run goes on from there.",
    )
    add = parser.add_argument
    add("--device", choices=("gpu", "cpu"), default="gpu", help="cpu is a rehearsal; by default gpu")
    add("--model", help="a folder or a Hugging Face id; by default random weights, and on the CPU `embedded`")
    add("--random-weights", choices=tuple(SHAPES), help="make up the weights of this model")
    add("--checkpoint", action="store_true", help="write random weights to disk, and load them from there")
    add("--minutes", type=float, default=_USUAL_MINUTES, help="about how long to measure; by default 25")
    add("--stages", default="all", help=f"all, smoke ({','.join(smoke)}), or some of {','.join(stages)}")
    add("--again", default="", metavar="STAGES", help="measure these again, by commas, or all")
    add("--price", type=float, default=0.0, help="US dollars of one GPU for an hour; 0 if unknown")
    add("--windows", type=Path, default=REPOSITORY.parent / "shared" / "traces" / "windows",
        help="a folder of recorded traffic to replay with the measured fleet file")  # fmt: skip
    add("--out", type=Path, default=REPOSITORY / "benchmarks" / "results" / "gpu_proof")
    given = parser.parse_args(argv)
    least, most = _MINUTES
    if not least <= given.minutes <= most:
        parser.error(f"--minutes = {given.minutes:g}: must be from {least:g} to {most:g}")
    if not 0 <= given.price <= 10_000:
        parser.error(f"--price = {given.price:g}: must be from 0 to 10,000")
    if given.model and given.random_weights:
        parser.error("--model and --random-weights: one or the other")
    if given.checkpoint and (given.model or (given.device == "cpu" and not given.random_weights)):
        parser.error("--checkpoint: only with --random-weights")
    named = {"all": stages, "smoke": smoke, "": ()}
    chosen = {}
    for option, text in (("stages", given.stages), ("again", given.again)):
        names = named[text] if text in named else tuple(text.split(","))
        for name in names:
            if name not in stages:
                parser.error(f"--{option}: {name!r} is none of {', '.join(stages)}")
        chosen[option] = tuple(name for name in stages if name in names)
    if given.device == "gpu" and not given.model and given.random_weights is None:
        given.random_weights = next(iter(SHAPES))
    return Options(**vars(given) | chosen)
