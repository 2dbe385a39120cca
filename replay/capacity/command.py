"""`tideserve capacity`: measure one replica of a running application, and write its fleet file."""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from replay.capacity.method import USUAL, Method, Plan
from replay.capacity.server import MeasurementError
from replay.status_line import StatusLine
from serve_app.cli import CommandError
from serve_app.cli.http_client import DEFAULT_URL, authorization

if TYPE_CHECKING:
    from replay.profile import Profile

_DURATION_S = 90.0
_BOUNDS_S = (20.0, 3600.0)
_STEP_S = 20.0
_STEP_BOUNDS_S = (5.0, 600.0)
_PROMPT_TOKENS, _OUTPUT_TOKENS = 512, 128
_MOST_TOKENS = 1_000_000


def add_command(commands: Any) -> None:
    """Register `capacity`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "capacity", help="measure the capacity of one replica, for replays and the policy's starting values"
    )
    add = parser.add_argument
    add("--url", default=DEFAULT_URL, help=f"where the API is served; by default {DEFAULT_URL}")
    add("--model", metavar="M", help="the model to measure, if several are served")
    add("--out", type=Path, default=Path("fleet.yaml"), help="the file to write; by default fleet.yaml")
    add("--force", action="store_true", help="overwrite the file")
    add(
        "--duration", type=float, default=_DURATION_S, metavar="SECONDS",
        help=f"length of the loads that the step time is fitted to; by default {_DURATION_S:g}",
    )  # fmt: skip
    add("--no-knee", action="store_true", help="measure the step time only, not the knee under open load")
    add(
        "--prompt-tokens", type=int, default=_PROMPT_TOKENS, metavar="N",
        help=f"prompt length of the requests that search the knee; by default {_PROMPT_TOKENS}",
    )  # fmt: skip
    add(
        "--output-tokens", type=int, default=_OUTPUT_TOKENS, metavar="N",
        help=f"length of their answers; by default {_OUTPUT_TOKENS}",
    )  # fmt: skip
    add(
        "--step-seconds", type=float, default=_STEP_S, metavar="SECONDS",
        help=f"least time to keep each rate; by default {_STEP_S:g}",
    )  # fmt: skip
    add("--gpu", default="unknown", metavar="NAME", help="the GPU that the replica runs on")
    add("--gpus", type=int, default=1, metavar="N", help="GPUs of the replica; by default 1")
    add("--price", type=float, default=0.0, metavar="DOLLARS", help="price of a GPU-hour; by default 0")
    add("--max-num-seqs", type=int, metavar="N", help="sequences in a batch; by default as served")
    add("--seed", type=int, default=0, metavar="N", help="seed of prompts and of the order of loads")
    parser.set_defaults(command=run_capacity)


def run_capacity(options: argparse.Namespace) -> int:
    """Check the options and measure. Interrupted, it writes nothing."""
    _check(options)
    return measure_and_write(options, USUAL, asyncio.run)


def measure_and_write(options: argparse.Namespace, method: Method, run: Callable[[Any], Any]) -> int:
    """Measure, fit, search the knee, report and write, with `run` as `asyncio.run`.

    Raises CommandError if there is nothing to write.
    """
    # numpy and aiohttp: half a second that no other command should take.
    from replay.fit import FitError  # noqa: PLC0415

    status = StatusLine(sys.stderr)
    try:
        model, profile = _measure(options, method, run, status)
    except KeyboardInterrupt:
        raise CommandError("interrupted; its streams are closed, and nothing was written") from None
    except MeasurementError as error:
        raise CommandError(str(error)) from None
    except FitError as error:
        raise CommandError(
            f"the measurement does not determine the step time: {error}; try a longer --duration"
        ) from None
    finally:
        status.end()
    _write(options, model, profile)
    return 0


def _measure(
    options: argparse.Namespace, method: Method, run: Callable[[Any], Any], status: StatusLine
) -> tuple[str, Profile]:
    """The model and its profile. Prints the report of each part when it is known."""
    from replay.capacity.fleet_file import Hardware, make_profile, with_knee  # noqa: PLC0415
    from replay.capacity.knee_text import knee_report, report  # noqa: PLC0415
    from replay.capacity.measure import measure  # noqa: PLC0415
    from replay.capacity.open_loop import find_knee  # noqa: PLC0415
    from replay.fit import fit  # noqa: PLC0415

    asked = (options.prompt_tokens, options.output_tokens)
    plan = Plan(
        options.url, options.model, options.duration, *asked, options.step_seconds, options.seed,
        authorization(), method,
    )  # fmt: skip
    measured = run(measure(plan, status.show))
    status.end()
    fitted = fit(measured.samples)
    hardware = Hardware(options.gpu, options.gpus, options.price, options.max_num_seqs)
    profile = make_profile(measured, fitted, hardware, options.out.stem, datetime.now(UTC).date())
    text = report(profile, fitted, measured.knobs, measured.limits.max_model_len, measured.cold_start)
    print(text, flush=True)
    if options.no_knee:
        return measured.model, profile
    outcome = run(find_knee(plan, measured, profile, status.show))
    status.end()
    if outcome is None:
        print("No knee: an empty replica misses both targets; raise ttft_target_s or itl_target_s\n")
        return measured.model, profile
    found, rates = outcome
    print(knee_report(found, rates), flush=True)
    return measured.model, with_knee(profile, found, asked)


def _write(options: argparse.Namespace, model: str, profile: Profile) -> None:
    """Write the file, and print how the policy starts from the measured values."""
    from replay.capacity.fleet_file import starting_values_block, write_profile  # noqa: PLC0415

    try:
        options.out.write_text(write_profile(profile), encoding="utf-8")
    except OSError as error:
        raise CommandError(f"--out = {options.out}: {error.strerror}") from None
    print(f"{options.out}: written")
    try:
        block = starting_values_block(model, profile)
    except MeasurementError as error:
        raise CommandError(f"{options.out} is for replays alone: {error}") from None
    print("\nTo have the policy begin with these values, under user_config of the deployment Ingress:\n")
    print("".join(f"  {line}\n" for line in block.splitlines()))
    print(f"or at once: tideserve knobs set {model} starting_values=@{options.out}")


def _check(options: argparse.Namespace) -> None:
    """Check the options before minutes of load. Raises CommandError."""
    if urlsplit(options.url).scheme not in ("http", "https"):
        raise CommandError(f"--url = {options.url!r}: must be an http(s) URL, such as {DEFAULT_URL}")
    for name, seconds, (least, most) in (
        ("duration", options.duration, _BOUNDS_S),
        ("step-seconds", options.step_seconds, _STEP_BOUNDS_S),
    ):
        if not least <= seconds <= most:
            raise CommandError(f"--{name} = {seconds:g}: must be from {least:g} to {most:g} seconds")
    if not 0 <= options.price < math.inf:
        raise CommandError(f"--price = {options.price:g}: must be at least 0 and finite")
    for name, value, bound in (
        ("gpus", options.gpus, 64),
        ("max-num-seqs", options.max_num_seqs, 4096),
        ("prompt-tokens", options.prompt_tokens, _MOST_TOKENS),
        ("output-tokens", options.output_tokens, _MOST_TOKENS),
    ):
        if value is not None and not 1 <= value <= bound:
            raise CommandError(f"--{name} = {value}: must be from 1 to {bound}")
    if options.out.suffix not in (".yaml", ".yml"):
        raise CommandError(f"--out = {options.out}: must end in .yaml, by which a profile's file is known")
    if not options.out.parent.is_dir():
        raise CommandError(f"--out = {options.out}: {options.out.parent} is not a folder")
    if options.out.exists() and not options.force:
        raise CommandError(f"--out = {options.out}: exists; --force overwrites it")
