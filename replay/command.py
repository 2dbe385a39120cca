"""`tideserve replay`: what a policy would have done, and cost, on recorded traffic."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replay.command_inputs import Inputs, add_inputs, read_inputs
from replay.command_policies import policies, with_knobs
from serve_app.settings.settings_error import SettingsError

if TYPE_CHECKING:
    from replay.command_display import Display
    from replay.result import Result

_INTERRUPTED = 130
"""What a shell reports of a process that Ctrl-C ended."""
_OURS, _ORACLE = "ours", "oracle"


def add_command(commands: Any) -> None:
    """Register `replay`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "replay",
        help="replay recorded traffic under an autoscaling policy, and say what it would have cost",
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
        help="a knob in place of the configuration's; may be repeated",
    )  # fmt: skip
    add("--seed", type=int, default=0, metavar="N", help="of cold starts, failures and routing; by default 0")
    add("--initial", type=int, metavar="N", help="replicas ready at the start; see docs/replay.md")
    add("--capacity", type=int, metavar="N", help="replicas the cluster has room for; by default no limit")
    add(
        "--start-failures", type=float, default=0.0, metavar="P",
        help="share of starts that fail and are tried again; by default 0",
    )  # fmt: skip
    add(
        "--routing", default="grouped", metavar="HOW",
        help="grouped, as the ingress picks a replica; tokens; or two-choices; by default grouped",
    )  # fmt: skip
    add(
        "--oracle", action=argparse.BooleanOptionalAction, default=False,
        help="also find what a schedule made with hindsight would have cost",
    )  # fmt: skip
    add("--json", metavar="OUT", help="write everything there; - is standard output, without the tables")
    add("--html", type=Path, metavar="OUT", help="write a page there")
    add("--png", type=Path, metavar="OUT", help="write two pictures there: a folder, or a name in .png")
    parser.set_defaults(command=run_replay)


def run_replay(options: argparse.Namespace) -> int:
    """Check, replay, report. Interrupted, it writes nothing and returns 130."""
    try:
        return _run(options)
    except KeyboardInterrupt:
        print("\ntideserve: interrupted; nothing was written", file=sys.stderr)
        return _INTERRUPTED


def _run(options: argparse.Namespace) -> int:
    specs = policies(options.policy or [_OURS])
    # numba, rich and numpy: a second that no other command should take.
    from loadtests.traces import TraceError  # noqa: PLC0415
    from replay.command_display import Display  # noqa: PLC0415
    from replay.command_outputs import STDOUT, Outputs  # noqa: PLC0415
    from replay.fleet.kernel import is_compiled  # noqa: PLC0415
    from replay.report import print_comparison, print_result  # noqa: PLC0415

    outputs = Outputs(options.json, options.html, options.png)
    outputs.check()
    inputs = read_inputs(options)
    given = _given(inputs, options)
    _check(specs, inputs, given)
    bound = [_ORACLE] if options.oracle and _ORACLE not in specs else []

    display = Display(sys.stderr)
    for note in inputs.notes:
        display.say(note)
    if not is_compiled():
        display.say("compiling the simulator, once (about 10 s)")
    try:
        results = _together([_replayed(spec, inputs, given, display) for spec in [*specs, *bound]])
    except TraceError as error:
        raise SettingsError([str(error)]) from None
    if options.json != STDOUT:
        if len(specs) > 1:
            print_comparison(results)
        else:
            print_result(results[0])
    for path in outputs.write(results):
        display.say(f"{path}: written")
    return 0


def _given(inputs: Inputs, options: argparse.Namespace) -> dict[str, Any]:
    """The options of `replay.run.replay`, but for the policy."""
    return {
        "knobs": with_knobs(inputs.knobs, options.knob),
        "profile": inputs.profile,
        "cold_start_s": inputs.cold_start_s,
        "seed": options.seed,
        "initial": options.initial,
        "routing": options.routing,
        "capacity": options.capacity,
        "start_failures": options.start_failures,
    }


def _check(specs: Sequence[str], inputs: Inputs, given: dict[str, Any]) -> None:
    """Find out before the first replay what the last would stumble on."""
    from replay.laws.registry import SpecError  # noqa: PLC0415
    from replay.run import check_policy  # noqa: PLC0415
    from replay.scenario import scenario  # noqa: PLC0415

    asked = scenario(inputs.trace, **given)
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


def _replayed(spec: str, inputs: Inputs, given: dict[str, Any], display: Display) -> Result:
    from replay.hindsight.oracle import GOAL  # noqa: PLC0415
    from replay.run import replay  # noqa: PLC0415

    began = time.perf_counter()
    with display.running(spec) as progress:
        result = replay(inputs.trace, policy=spec, progress=progress, **given)
    display.ended(result, time.perf_counter() - began)
    if result.policy_errors:
        display.say(
            f"{spec}: {result.policy_errors} decisions raised, and kept the target; see the log above"
        )
    if spec == _ORACLE and result.attainment < GOAL:
        display.say(
            f"oracle: found no schedule of this fleet that attains {100 * GOAL:g} %; the best attains "
            f"{100 * result.attainment:.2f} %"
        )
    return result


def _together(results: list[Result]) -> list[Result]:
    """Each with the oracle's cost, and the first with what the others came to."""
    from replay.command_outputs import summaries  # noqa: PLC0415

    oracle = next((result.gpu_seconds.total for result in results if result.policy == _ORACLE), None)
    first, *others = (replace(result, oracle_gpu_seconds=oracle) for result in results)
    return [replace(first, peers=dict(summaries(others))), *others]
