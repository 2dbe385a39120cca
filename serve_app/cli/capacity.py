"""`tideserve capacity`: measure one replica of a running application, and write its fleet file."""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO
from urllib.parse import urlsplit

from serve_app.capacity.failure import MeasurementError
from serve_app.cli.explain import DEFAULT_URL
from serve_app.cli.failure import CommandError

if TYPE_CHECKING:
    from serve_app.capacity.measure import Progress

_DURATION_S = 90.0
_BOUNDS_S = (20.0, 3600.0)


def add_command(commands: Any) -> None:
    """Register `capacity`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "capacity", help="measure what one replica carries, and write a fleet file for replays"
    )
    parser.add_argument(
        "--url", default=DEFAULT_URL, help=f"where the API is served; by default {DEFAULT_URL}"
    )
    parser.add_argument("--model", metavar="M", help="the model to measure, where several are served")
    parser.add_argument(
        "--out", type=Path, default=Path("fleet.yaml"), help="the file to write; by default fleet.yaml"
    )
    parser.add_argument("--force", action="store_true", help="overwrite the file")
    parser.add_argument(
        "--duration",
        type=float,
        default=_DURATION_S,
        metavar="SECONDS",
        help=f"how long to keep it under load; by default {_DURATION_S:g}",
    )
    parser.add_argument("--gpu", default="unknown", metavar="NAME", help="what the replica runs on")
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="GPUs of the replica; by default 1")
    parser.add_argument(
        "--price", type=float, default=0.0, metavar="DOLLARS", help="of one GPU for an hour; by default 0"
    )
    parser.add_argument(
        "--max-num-seqs", type=int, metavar="N", help="sequences in a batch, in place of what the server says"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of prompts and of the order of loads"
    )
    parser.set_defaults(command=run_capacity)


def run_capacity(options: argparse.Namespace) -> int:
    """Measure, fit, report and write. Interrupted, it writes nothing."""
    _check(options)
    # numpy and aiohttp: half a second that no other command should take.
    from serve_app.capacity.fleet_file import Hardware, make_profile, write_profile  # noqa: PLC0415
    from serve_app.capacity.measure import Plan, measure  # noqa: PLC0415
    from serve_app.capacity.report import report  # noqa: PLC0415
    from serve_app.replay.fit import FitError, fit  # noqa: PLC0415

    display = Display(sys.stderr)
    try:
        order = Plan(options.url, options.model, options.duration, options.seed)
        measured = asyncio.run(measure(order, display.tell))
        display.end()
        fitted = fit(measured.samples)
        hardware = Hardware(options.gpu, options.gpus, options.price, options.max_num_seqs)
        day = datetime.now(UTC).date()
        profile = make_profile(measured, fitted, hardware, options.out.stem, day)
    except KeyboardInterrupt:
        display.end()
        raise CommandError("interrupted; its streams are closed, and nothing was written") from None
    except MeasurementError as error:
        display.end()
        raise CommandError(str(error)) from None
    except FitError as error:
        raise CommandError(
            f"the measurement does not tell the step time: {error}; try a longer --duration"
        ) from None
    print(report(profile, fitted, measured.knobs, measured.limits.max_model_len, measured.cold_start), end="")
    try:
        options.out.write_text(write_profile(profile), encoding="utf-8")
    except OSError as error:
        raise CommandError(f"--out = {options.out}: {error.strerror}") from None
    print(f"\n{options.out}: written")
    return 0


def _check(options: argparse.Namespace) -> None:
    """What would only come to light after minutes of load."""
    if urlsplit(options.url).scheme not in ("http", "https"):
        raise CommandError(f"--url = {options.url!r}: must be an http(s) URL, such as {DEFAULT_URL}")
    least, most = _BOUNDS_S
    if not least <= options.duration <= most:
        raise CommandError(f"--duration = {options.duration:g}: must be from {least:g} to {most:g} seconds")
    if not 0 <= options.price < math.inf:
        raise CommandError(f"--price = {options.price:g}: must be at least 0 and finite")
    for name, value, bound in (("gpus", options.gpus, 64), ("max-num-seqs", options.max_num_seqs, 4096)):
        if value is not None and not 1 <= value <= bound:
            raise CommandError(f"--{name} = {value}: must be from 1 to {bound}")
    out: Path = options.out
    if out.suffix not in (".yaml", ".yml"):
        raise CommandError(f"--out = {out}: must end in .yaml, by which a profile's file is known")
    if not out.parent.is_dir():
        raise CommandError(f"--out = {out}: {out.parent} is no folder")
    if out.exists() and not options.force:
        raise CommandError(f"--out = {out}: exists; --force overwrites it")


class Display:
    """The progress: one line that is written over on a terminal, a line a load elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rewrites = stream.isatty()
        self._shown = ""

    def tell(self, progress: Progress) -> None:
        """Show how far it is."""
        what = f"load {progress.cell}/{progress.cells}: {progress.what}" if progress.cell else progress.what
        figures = f"{progress.samples} samples, {progress.left_s:.0f} s left" if progress.cell else ""
        if self._rewrites:
            self._stream.write(f"\r\x1b[K{what}{'; ' if figures else ''}{figures}")
        elif what != self._shown:
            self._stream.write(f"{what}\n")
        self._shown = what
        self._stream.flush()

    def end(self) -> None:
        """Leave the line as it is."""
        if self._rewrites and self._shown:
            self._stream.write("\n")
            self._stream.flush()
        self._shown = ""
