"""`tideserve replay`: what an autoscaling policy would have done, and cost, on recorded traffic."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from replay.defaults import GOAL, ORACLE, OURS
from replay.inputs import add_inputs, read_inputs
from replay.status_line import StatusLine
from serve_app.cli import CommandError
from serve_app.cli.knobs_command import parse_arguments
from serve_app.cluster.knob_changes import DEFAULT, changed
from serve_app.settings.knobs import Knobs, overlay
from serve_app.settings.settings_error import SettingsError, from_pydantic

if TYPE_CHECKING:
    from replay.result import Result
    from replay.scenario import Scenario

_INTERRUPTED = 130
"""The exit status that shells report of a process that Ctrl-C ended."""
_SCOPE = "knob"
"""The scope that errors name for a knob of `--knob`."""
_STDOUT = "-"
_NAME_WIDTH = 18


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
        "--seed", type=int, default=0, metavar="N",
        help="seed of cold starts, failures and routing; by default 0",
    )  # fmt: skip
    add("--initial", type=int, metavar="N", help="replicas ready at the start; see docs/replay.md")
    add(
        "--capacity", type=int, metavar="N",
        help="most replicas that the cluster has room for; by default no limit",
    )  # fmt: skip
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
    from replay.report.document import page  # noqa: PLC0415
    from replay.report.terminal import print_comparison, print_result  # noqa: PLC0415
    from replay.scenario import scenario  # noqa: PLC0415
    from traces import TraceError  # noqa: PLC0415

    files: dict[str, Path] = {} if options.html is None else {"--html": options.html}
    if options.json not in (None, _STDOUT):
        files["--json"] = Path(options.json)
    check_files(files)
    inputs = read_inputs(options)
    asked = scenario(
        inputs.traffic,
        knobs=with_knobs(inputs.knobs, options.knob),
        profile=inputs.profile,
        cold_start_s=inputs.cold_start_s,
        seed=options.seed,
        initial=options.initial,
        routing=options.routing,
        capacity=options.capacity,
        start_failures=options.start_failures,
        backlog=inputs.backlog,
    )
    _check_policies(specs, asked)
    bound = [ORACLE] if options.oracle and ORACLE not in specs else []

    progress = StatusLine(sys.stderr)
    for note in inputs.notes:
        progress.say(note)
    _announce_compilation(progress)
    try:
        results = _compare([_replay(spec, asked, progress) for spec in [*specs, *bound]])
    except TraceError as error:
        raise SettingsError([str(error)]) from None
    for torn in inputs.trace.left_out():
        progress.say(torn)
    if options.json == _STDOUT:
        print(json_text(results), end="")
    elif len(specs) > 1:
        print_comparison(results)
    else:
        print_result(results[0])
    texts = {"--json": json_text, "--html": page}
    for path in write_files({path: texts[option](results) for option, path in files.items()}):
        progress.say(f"{path}: written")
    return 0


def _check_policies(specs: Sequence[str], asked: Scenario) -> None:
    """Find out before the first replay whether a later one could not run."""
    from replay.policies import SpecError  # noqa: PLC0415
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


def _announce_compilation(progress: StatusLine) -> None:
    from replay.fleet.kernel.arrivals import arrive  # noqa: PLC0415
    from replay.fleet.kernel.compiler import is_compiled  # noqa: PLC0415

    if not is_compiled(arrive):
        progress.say("compiling the simulator, once (about 10 s)")


def _replay(spec: str, asked: Scenario, progress: StatusLine) -> Result:
    from replay.run import run  # noqa: PLC0415

    began = time.perf_counter()

    def show(share: float) -> None:
        progress.show("", f"{spec}: {100 * share:.0f} %, {time.perf_counter() - began:.0f} s")

    result = run(asked, spec, show)
    progress.say(
        f"{result.policy:<{_NAME_WIDTH}} {result.gpu_seconds.total:>10,.0f} GPU-s, "
        f"{100 * result.attainment:6.2f} % attained, in {time.perf_counter() - began:.1f} s"
    )
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


def _compare(results: list[Result]) -> list[Result]:
    """Each result with the oracle's cost, and the first with a summary of the others."""
    oracle = next((result.gpu_seconds.total for result in results if result.policy == ORACLE), None)
    first, *others = (replace(result, oracle_gpu_seconds=oracle) for result in results)
    return [replace(first, peers={other.policy: other.summary() for other in others}), *others]


def policies(given: Sequence[str]) -> list[str]:
    """The specifications in `--policy` options: one or, by commas, several each.

    A comma also separates the settings of one policy: a part with `=` and no colon before it belongs to the
    specification before it, as in `ray:5,dynamo:itl=0.02,ttft=0.2`.

    Raises SettingsError for an empty one, or one that is given twice.
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
        contradictions = [item for item in error.errors(include_url=False) if not item["loc"]]
        if contradictions:  # their messages name the knobs
            raise SettingsError(
                [f"{_SCOPE}: {item['msg'].removeprefix('Value error, ')}" for item in contradictions]
            ) from None
        raise SettingsError([f"{_SCOPE}.{line}" for line in from_pydantic(error).problems]) from None


def json_text(results: Sequence[Result]) -> str:
    """The JSON of one result; of several, the first one's with all documents under `results`."""
    from replay.report.document import document  # noqa: PLC0415

    known: dict[str, Any] = document(results[0])
    if len(results) > 1:
        known["results"] = [document(result) for result in results]
    return json.dumps(known, indent=1, allow_nan=False) + "\n"


def check_files(files: Mapping[str, Path]) -> None:
    """Check before minutes of replays that the files of these options can be written.

    Raises SettingsError naming each option, its path, and what is wrong with it.
    """
    problems = []
    for option, path in files.items():
        if path.is_dir():
            problems.append(f"{option} = {path}: a folder; must be a file")
        elif not path.parent.is_dir():
            problems.append(f"{option} = {path}: {path.parent} is not a folder")
        elif not os.access(path.parent, os.W_OK):
            problems.append(f"{option} = {path}: {path.parent} is not writable")
    if problems:
        raise SettingsError(problems)


def write_files(texts: Mapping[Path, str]) -> list[Path]:
    """Write each text to its path and return the paths.

    All files are written beside their targets first, and moved at the end. Interrupted or failing before
    that, it leaves every target as it was.

    Raises CommandError if something cannot be written.
    """
    moves = {path: path.with_name(f".{path.name}.{os.getpid()}") for path in texts}
    path = Path()
    try:
        for path, temporary in moves.items():
            temporary.write_text(texts[path], encoding="utf-8")
        for path, temporary in moves.items():
            os.replace(temporary, path)
    except OSError as error:
        raise CommandError(f"{path}: could not be written: {error.strerror}") from None
    finally:
        for temporary in moves.values():
            temporary.unlink(missing_ok=True)
    return list(moves)
