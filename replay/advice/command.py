"""`tideserve advise`: the knobs that would have served recorded traffic for the fewest GPU-seconds."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replay.defaults import BUDGET_S, GOAL, SEEDS
from replay.inputs import add_inputs, read_inputs
from replay.status_line import StatusLine
from serve_app.cli import CommandError
from serve_app.cluster.knob_changes import value_text
from serve_app.settings.settings_error import SettingsError

if TYPE_CHECKING:
    from replay.advice.search import Tried

_MOST_SEEDS = 100
_BUDGET_BOUNDS_S = (1.0, 86_400.0)


def add_command(commands: Any) -> None:
    """Register `advise`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "advise",
        help="search for the cheapest knobs that meet the targets on recorded traffic",
        description="Replays recorded requests on a simulated fleet with one change of the knobs after "
        "another, and prints what to change in the configuration, what it saves, and how certain that is. "
        "Starts nothing, and needs no GPU.",
    )
    add_inputs(parser)
    add = parser.add_argument
    add("--seeds", type=int, default=SEEDS, metavar="N", help=f"seeds per configuration; by default {SEEDS}")
    add(
        "--attainment", type=float, default=GOAL, metavar="SHARE",
        help=f"share of requests in minutes that meet the targets; by default {GOAL:g}",
    )  # fmt: skip
    add(
        "--budget-s", type=float, default=BUDGET_S, metavar="SECONDS",
        help=f"time to search; by default {BUDGET_S:g}",
    )  # fmt: skip
    add("--knobs", metavar="NAMES", help="the knobs to search, separated by commas")
    add("--json", type=Path, metavar="OUT", help="also write the advice as JSON")
    parser.set_defaults(command=run_advise)


def run_advise(options: argparse.Namespace) -> int:
    """Search and print. Interrupted, it says so and prints nothing."""
    _check(options)
    inputs = read_inputs(options)
    # numba and numpy: a second that no other command should take.
    from replay.advice.advice_text import advice_document, advice_text  # noqa: PLC0415
    from replay.advice.advise import advise  # noqa: PLC0415
    from replay.advice.search import DEFAULT, check_names  # noqa: PLC0415
    from traces import TraceError  # noqa: PLC0415

    names = DEFAULT if options.knobs is None else check_names([n.strip() for n in options.knobs.split(",")])
    status = StatusLine(sys.stderr)
    began = time.monotonic()
    for note in inputs.notes:
        status.say(note)
    try:
        advice = advise(
            inputs.traffic,
            inputs.knobs,
            profile=inputs.profile,
            cold_start_s=inputs.cold_start_s,
            seeds=options.seeds,
            goal=options.attainment,
            budget_s=options.budget_s,
            names=names,
            backlog=inputs.backlog,
            show=lambda tried: status.show(_progress(tried, time.monotonic() - began)),
            say=status.say,
        )
    except KeyboardInterrupt:
        raise CommandError("interrupted; nothing is advised") from None
    except TraceError as error:
        raise SettingsError([str(error)]) from None
    finally:
        status.end()
    for torn in inputs.trace.left_out():
        print(torn, file=sys.stderr)
    print(advice_text(advice, inputs), end="")
    if options.json is not None:
        text = json.dumps(advice_document(advice, inputs), indent=1, allow_nan=False) + "\n"
        try:
            options.json.write_text(text, encoding="utf-8")
        except OSError as error:
            raise CommandError(f"--json = {options.json}: {error.strerror}") from None
        print(f"\n{options.json}: written", file=sys.stderr)
    return 0


def _check(options: argparse.Namespace) -> None:
    """Check the options before minutes of replays."""
    problems = []
    if not 1 <= options.seeds <= _MOST_SEEDS:
        problems.append(f"--seeds = {options.seeds}: must be from 1 to {_MOST_SEEDS}")
    if not 0.0 < options.attainment <= 1.0:
        problems.append(f"--attainment = {options.attainment:g}: must be above 0 and at most 1")
    least, most = _BUDGET_BOUNDS_S
    if not least <= options.budget_s <= most:
        problems.append(f"--budget-s = {options.budget_s:g}: must be from {least:g} to {most:g}")
    if options.json is not None and not options.json.parent.is_dir():
        problems.append(f"--json = {options.json}: {options.json.parent} is not a folder")
    if problems:
        raise SettingsError(problems)


def _progress(tried: Tried, seconds: float) -> str:
    """A configuration that was tried, and the best so far."""
    cost = f"{tried.score.gpu_seconds:,.0f} GPU-s at {100 * tried.score.attainment:.1f} %"
    best = f"best {tried.best.gpu_seconds:,.0f} at {100 * tried.best.attainment:.1f} %"
    dropped = " (dropped)" if tried.dropped else ""
    if tried.score.late:
        cost += f", {tried.score.late:,.0f} background requests late"
    return f"{seconds:4.0f} s {tried.count:3}: {_changed(tried.changes)}: {cost}{dropped}; {best}"


def _changed(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value_text(value)}" for name, value in values.items()) or "the current knobs"
