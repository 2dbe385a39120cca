"""`tideserve replay`: what an autoscaling policy would have done, and cost, on recorded traffic."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from replay.defaults import GOAL, ORACLE, OURS
from replay.inputs import add_inputs, read_inputs
from serve_app.cli.knob_changes import DEFAULT, changed, parse_arguments
from serve_app.settings.knobs import Knobs, overlay
from serve_app.settings.settings_error import SettingsError, from_pydantic

if TYPE_CHECKING:
    from replay.result import Result
    from replay.scenario import Scenario
    from replay.status_line import ProgressBar

_INTERRUPTED = 130
"""The exit status that shells report of a process that Ctrl-C ended."""
_SCOPE = "knob"
"""The scope that errors name for a knob of `--knob`."""


def add_command(commands: Any) -> None:
    """Register `replay`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "replay",
        help="replay recorded traffic under an autoscaling policy, and report its cost and latencies",
        description="Replays recorded requests on a simulated fleet. Starts nothing, and needs no GPU.",
    )
    add_inputs(parser)
    add = parser.add_argument
    add(
        "--policy", action="append", metavar="SPEC",
        help="ours (the default), ray[:TARGET], kpa, hpa:waiting=1, apa:5, dynamo, wva, static:N, static "
        "(the least N that attains 99 %%), oracle; several, by commas or repeated, are compared",
    )  # fmt: skip
    add(
        "--knob", action="append", default=[], metavar="NAME=VALUE",
        help="change a knob of the configuration; may be repeated",
    )  # fmt: skip
    add(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="seed of cold starts, failures and routing; by default 0",
    )
    add("--initial", type=int, metavar="N", help="replicas ready at the start; see docs/replay.md")
    add(
        "--capacity",
        type=int,
        metavar="N",
        help="most replicas that the cluster has room for; by default no limit",
    )
    add(
        "--start-failures", type=float, default=0.0, metavar="P",
        help="share of starts that fail and are retried; by default 0",
    )  # fmt: skip
    add(
        "--routing", default="prefix-aware", metavar="HOW",
        help="how a replica is picked: prefix-aware (as the ingress does; the default), grouped, tokens, "
        "two-choices or text-tree; see docs/replay.md",
    )  # fmt: skip
    add(
        "--oracle", action=argparse.BooleanOptionalAction, default=False,
        help="also find the cost of a schedule made with hindsight",
    )  # fmt: skip
    add("--json", metavar="OUT", help="write all results as JSON; - for standard output, without the tables")
    add("--html", type=Path, metavar="OUT", help="write an HTML page")
    add(
        "--png",
        type=Path,
        metavar="OUT",
        help="write two pictures to a folder, or with a prefix that ends in .png",
    )
    parser.set_defaults(command=run_replay)


def run_replay(options: argparse.Namespace) -> int:
    """Check, replay, report. Interrupted, it writes nothing and returns 130."""
    try:
        return _run(options)
    except KeyboardInterrupt:
        print("\ntideserve: interrupted; nothing was written", file=sys.stderr)
        return _INTERRUPTED


def _run(options: argparse.Namespace) -> int:
    specs = policies(options.policy or [OURS])
    # numba, rich and numpy: a second that no other command should take.
    from replay.fleet.kernel import is_compiled  # noqa: PLC0415
    from replay.outputs import STDOUT, Outputs  # noqa: PLC0415
    from replay.report import print_comparison, print_result  # noqa: PLC0415
    from replay.scenario import scenario  # noqa: PLC0415
    from replay.status_line import ProgressBar  # noqa: PLC0415
    from traces import TraceError  # noqa: PLC0415

    outputs = Outputs(options.json, options.html, options.png)
    outputs.check()
    inputs = read_inputs(options)
    asked = scenario(
        inputs.trace,
        knobs=with_knobs(inputs.knobs, options.knob),
        profile=inputs.profile,
        cold_start_s=inputs.cold_start_s,
        seed=options.seed,
        initial=options.initial,
        routing=options.routing,
        capacity=options.capacity,
        start_failures=options.start_failures,
    )
    _check(specs, asked)
    bound = [ORACLE] if options.oracle and ORACLE not in specs else []

    progress = ProgressBar(sys.stderr)
    for note in inputs.notes:
        progress.say(note)
    if not is_compiled():
        progress.say("compiling the simulator, once (about 10 s)")
    try:
        results = _compared([_replayed(spec, asked, progress) for spec in [*specs, *bound]])
    except TraceError as error:
        raise SettingsError([str(error)]) from None
    for told in inputs.trace.left_out():
        progress.say(told)
    if options.json != STDOUT:
        if len(specs) > 1:
            print_comparison(results)
        else:
            print_result(results[0])
    for path in outputs.write(results):
        progress.say(f"{path}: written")
    return 0


def _check(specs: Sequence[str], asked: Scenario) -> None:
    """Find out before the first replay whether a later one could not run."""
    from replay.laws.registry import SpecError  # noqa: PLC0415
    from replay.run import check_policy  # noqa: PLC0415

    problems = []
    for spec in specs:
        try:
            check_policy(spec, asked)
        except SettingsError as error:
            problems += error.problems
        except SpecError as error:
            problems.append(str(error))
    if problems:
        raise SettingsError(problems)


def _replayed(spec: str, asked: Scenario, progress: ProgressBar) -> Result:
    from replay.run import run  # noqa: PLC0415

    began = time.perf_counter()
    with progress.running(spec) as share:
        result = run(asked, spec, share)
    progress.ended(result, time.perf_counter() - began)
    if result.policy_errors:
        progress.say(
            f"{spec}: {result.policy_errors} decisions raised an error and kept the target; see the log above"
        )
    if spec == ORACLE and result.attainment < GOAL:
        progress.say(
            f"oracle: found no schedule of this fleet that attains {100 * GOAL:g} %; the best attains "
            f"{100 * result.attainment:.2f} %"
        )
    return result


def _compared(results: list[Result]) -> list[Result]:
    """Each result with the oracle's cost, and the first with a summary of the others."""
    oracle = next((result.gpu_seconds.total for result in results if result.policy == ORACLE), None)
    first, *others = (replace(result, oracle_gpu_seconds=oracle) for result in results)
    return [replace(first, peers={other.policy: other.summary() for other in others}), *others]


def policies(given: Sequence[str]) -> list[str]:
    """The specifications in `--policy` options: one or, by commas, several each.

    A comma also separates the settings of one policy: a part with `=` and no colon before it belongs to the
    specification before it, as in `ray:5,dynamo:itl=0.02,ttft=0.2`.

    Raises:
        SettingsError: for an empty one, or one that is given twice.
    """
    found: list[str] = []
    for text in given:
        own: list[str] = []
        for part in (piece.strip() for piece in text.split(",")):
            if own and "=" in part and ":" not in part.partition("=")[0]:
                own[-1] += f",{part}"
            else:
                own.append(part)
        found += own
    problems = []
    if "" in found:
        problems.append("--policy: a policy is missing between commas, or has no name")
    problems += [
        f"--policy = {spec!r}: given twice" for spec in dict.fromkeys(found) if spec and found.count(spec) > 1
    ]
    if problems:
        raise SettingsError(problems)
    return found


def with_knobs(knobs: Knobs, given: Sequence[str]) -> Knobs:
    """`knobs` with each `name=value` applied.

    Raises SettingsError naming each that is not a knob, has no value, or is out of its bounds.
    """
    if not given:
        return knobs
    wrong = [f"--knob = {pair!r}: must be name=value" for pair in given if "=" not in pair]
    if wrong:
        raise SettingsError(wrong)
    _, values = parse_arguments(given)
    wrong = [f"{_SCOPE}.{name} = {DEFAULT}: must be a value" for name in values if values[name] == DEFAULT]
    if wrong:
        raise SettingsError(wrong)
    changed({}, _SCOPE, values)
    try:
        return overlay(knobs, values)
    except ValidationError as error:
        raise SettingsError(_problems(error)) from None


def _problems(error: ValidationError) -> list[str]:
    """The problems; of a contradiction between knobs only its message, which names them."""
    contradictions = [item for item in error.errors(include_url=False) if not item["loc"]]
    if contradictions:
        return [f"{_SCOPE}: {item['msg'].removeprefix('Value error, ')}" for item in contradictions]
    return [f"{_SCOPE}.{line}" for line in from_pydantic(error).problems]
