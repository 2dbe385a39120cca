"""`tideserve loadtest`: run a scenario against a deployment, judge it, and compare runs."""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, TextIO, cast
from urllib.parse import urlsplit

from serve_app import env
from serve_app.cli import CommandError
from serve_app.cli.http_client import DEFAULT_URL, authorization
from serve_app.settings.settings_error import SettingsError

if TYPE_CHECKING:
    from rich.console import Console

    from loadtests.plan import Planned
    from loadtests.record import Run
    from loadtests.scenario import Scenario

_COMPARE, _REPORT = "compare", "report"
_SCENARIOS = Path(__file__).resolve().parent / "scenarios"
JSON, HTML = "run.json", "report.html"
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A token of RFC 9110, 5.6.2."""
_OWN_HEADERS = frozenset(("Content-Length", "Transfer-Encoding", "Connection"))


def add_command(commands: Any) -> None:
    """Register `loadtest`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "loadtest",
        help="send a scenario's requests to a deployment, watch it scale, and judge it by its SLOs",
        description="Runs SCENARIO, a YAML file or the name of one in loadtests/scenarios. "
        "`loadtest compare A B` lists the figures that got better or worse from A to B, each a run.json or a "
        "folder of runs. `loadtest report RUN` judges a run again and writes its page.",
        epilog="Exit status: 0 pass, 3 fail, 4 invalid: the client was late, or the run was cut short.",
    )
    add = parser.add_argument
    add("what", nargs="+", metavar="SCENARIO | compare A B | report RUN")
    add("--url", help=f"where the API is served; by default {DEFAULT_URL}")
    add(
        "--serve", type=Path, metavar="CONFIG",
        help="instead of --url: serve this configuration on a free port, as `tideserve run` does, and stop "
        "it at the end",
    )  # fmt: skip
    add("--model", metavar="M", help="the model of requests that name none, where several are served")
    add("--seed", type=int, metavar="N", help="the seed, instead of the scenario's")
    add("--trace", metavar="FILE", help="the trace, instead of the files that `shape: trace` names")
    add(
        "--header", action="append", default=[], metavar="NAME: VALUE",
        help=f"a header of every request; may be repeated. {env.API_KEY} is sent as a bearer token if set",
    )  # fmt: skip
    price = "the price of one GPU for an hour, instead of the scenario's"
    add("--price", type=float, metavar="DOLLARS", help=price)
    folder = "the report's folder; by default loadtest-results/NAME-TIME"
    add("--out", type=Path, metavar="FOLDER", help=folder)
    add("--force", action="store_true", help="write into a folder that has a run already")
    parser.set_defaults(command=run_loadtest)


def run_loadtest(options: argparse.Namespace) -> int:
    """Run, compare or report. Returns the verdict's status: 0 pass, 3 fail, 4 invalid."""
    first, *others = options.what
    if first == _COMPARE:
        return _compare(others)
    if first == _REPORT:
        return _report(others, options)
    if others:
        raise SettingsError([f"{' '.join(options.what)}: one scenario at a time, or `compare A B`"])
    try:
        return _test(first, options)
    except KeyboardInterrupt:
        raise CommandError("interrupted before a report was written") from None


def _test(name: str, options: argparse.Namespace) -> int:
    # numpy, aiohttp and rich: a second that no other command should take.
    from loadtests.live_view import view_for  # noqa: PLC0415
    from loadtests.plan import plan  # noqa: PLC0415
    from loadtests.runner import Order, run  # noqa: PLC0415
    from loadtests.server import ServerError  # noqa: PLC0415

    headers = _headers(options.header)
    path = _scenario_path(name)
    scenario = _scenario(path, options)
    planned: tuple[Planned, ...] = ()
    if scenario.closed:
        planned_s = scenario.closed.for_s
    else:
        planned, planned_s = plan(scenario, path.parent, options.trace)
    console = _console()
    try:
        with _server(options, console) as (url, folder):
            _announce(console, scenario, planned, planned_s, url)
            order = Order(scenario, planned, planned_s, url.rstrip("/"), options.model, headers)
            with view_for(console, scenario.name) as view:
                done = asyncio.run(run(order, view))
            # Before the server is stopped, which takes long: no measurement may be lost.
            return _report_on(done, folder, console)
    except ServerError as error:
        raise CommandError(str(error)) from None


def _console() -> Console:
    """For progress and messages; results go to standard output."""
    from rich.console import Console  # noqa: PLC0415

    from serve_app.cli.terminal_output import LastingStream  # noqa: PLC0415

    return Console(file=cast(TextIO, LastingStream(sys.stderr)))


def _report_on(done: Run, folder: Path, console: Console) -> int:
    """Judge a run, write its files, print its summary, and return the exit status."""
    from loadtests.report.document import write_json  # noqa: PLC0415
    from loadtests.report.html import write_html  # noqa: PLC0415
    from loadtests.summary import summarize  # noqa: PLC0415
    from loadtests.terminal import print_summary  # noqa: PLC0415
    from loadtests.verdicts import judge  # noqa: PLC0415

    summary = summarize(done)
    verdicts = judge(done, summary)
    try:
        written = [
            write_json(folder / JSON, done, summary, verdicts),
            write_html(folder / HTML, done, summary, verdicts),
        ]
    except OSError as error:
        raise CommandError(f"{error.filename or folder}: {error.strerror}") from None
    finally:  # If no report could be written, this is all that is left of the run.
        print_summary(summary, verdicts, done)
    console.print(f"\n{', '.join(str(path) for path in written)}: written", soft_wrap=True, highlight=False)
    return verdicts.exit_status


def _compare(paths: Sequence[str]) -> int:
    from loadtests.compare import compare  # noqa: PLC0415
    from loadtests.terminal import print_comparison  # noqa: PLC0415

    if len(paths) != 2:
        raise SettingsError([f"compare: takes two runs, and {len(paths)} are given"])
    before, after = (_runs(Path(path)) for path in paths)
    print_comparison(compare(before, after))
    return 0


def _runs(path: Path) -> list[Run]:
    """The run at `path`, or those in a folder and the folders in it."""
    from loadtests.report.document import read_run  # noqa: PLC0415

    files = [path]
    if path.is_dir():  # one a folder, where both a plain and a compressed one lie there
        there = (file for name in (f"{JSON}.gz", JSON) for file in path.rglob(name))
        files = sorted({file.parent: file for file in there}.values())
    if not files:
        raise SettingsError([f"{path}: no {JSON} in this folder"])
    return [read_run(file) for file in files]


def _report(paths: Sequence[str], options: argparse.Namespace) -> int:
    if len(paths) != 1:
        raise SettingsError([f"report: takes one run, and {len(paths)} are given"])
    runs = _runs(Path(paths[0]))
    if len(runs) != 1:
        raise SettingsError([f"{paths[0]}: has {len(runs)} runs; name one"])
    source = Path(paths[0])
    folder = options.out or (source if source.is_dir() else source.parent)
    _make(folder)
    return _report_on(runs[0], folder, _console())


def _scenario_path(name: str) -> Path:
    path = Path(name)
    if path.exists() or "/" in name or path.suffix:
        return path
    there = _SCENARIOS / f"{name}.yaml"
    if there.exists():
        return there
    known = ", ".join(sorted(file.stem for file in _SCENARIOS.glob("*.yaml")))
    raise SettingsError([f"scenario {name!r}: no such file, and none of loadtests/scenarios ({known})"])


def _scenario(path: Path, options: argparse.Namespace) -> Scenario:
    from loadtests.scenario import read_scenario  # noqa: PLC0415

    scenario = read_scenario(path)
    changes: dict[str, Any] = {}
    if options.seed is not None:
        if not 0 <= options.seed < 2**63:
            raise SettingsError([f"--seed = {options.seed}: must be from 0 to 2^63 - 1"])
        changes["seed"] = options.seed
    if options.price is not None:
        if not 0 <= options.price <= 10_000:
            raise SettingsError([f"--price = {options.price:g}: must be from 0 to 10,000 dollars"])
        changes["cost"] = scenario.cost.model_copy(update={"price_per_gpu_hour": options.price})
    if options.trace is not None and not any(part.shape == "trace" for part in scenario.arrivals):
        raise SettingsError([f"--trace = {options.trace}: {path} has no arrivals of shape: trace"])
    return scenario.model_copy(update=changes)


def _headers(given: Sequence[str]) -> Mapping[str, str]:
    """By name, written as `Content-Type` is, so that one given in any other case replaces it."""
    headers = authorization()
    for line in given:
        name, colon, value = (part.strip() for part in line.partition(":"))
        if not colon or not _HEADER_NAME.fullmatch(name) or not value.isprintable():
            raise SettingsError([f"--header = {line!r}: must be a name, a colon and a value"])
        if name.title() in _OWN_HEADERS:
            raise SettingsError([f"--header = {line!r}: the client's own, which differs by request"])
        headers[name.title()] = value
    return headers


def _url(given: str | None) -> str:
    url = given or DEFAULT_URL
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port or an IPv6 address that is none
        good = False
    if not good:
        raise SettingsError([f"--url = {url!r}: must be an http(s) URL, such as {DEFAULT_URL}"])
    if parts.username is not None or parts.query or parts.fragment:
        raise SettingsError(
            ["--url: must have no user, query or fragment, since the report shows it; "
             "credentials are for --header"]
        )  # fmt: skip
    return url


@contextmanager
def _server(options: argparse.Namespace, console: Console) -> Iterator[tuple[str, Path]]:
    """The URL to test, and the folder for the report, which is made first."""
    if options.serve is not None and options.url is not None:
        raise SettingsError(["--url and --serve: one or the other; --serve starts a server of its own"])
    url = _url(options.url)
    folder = _folder(options)
    if options.serve is None:
        yield url, folder
        return
    from loadtests.server import own_server  # noqa: PLC0415
    from serve_app.cli.config_file import read_config  # noqa: PLC0415  it imports Ray

    read_config(options.serve)

    def say(text: str) -> None:
        console.print(text, soft_wrap=True, highlight=False)

    say(f"serving {options.serve}; its log is {folder / 'server.log'}")
    with own_server(options.serve, folder / "server.log", say) as own:
        yield own, folder


def _folder(options: argparse.Namespace) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    name = Path(options.what[0]).stem
    folder: Path = options.out or Path("loadtest-results") / f"{name}-{stamp}"
    if (folder / JSON).exists() and not options.force:
        raise SettingsError([f"--out = {folder}: has a run already; --force overwrites it"])
    _make(folder)
    return folder


def _make(folder: Path) -> None:
    """Make it, and find out before a run of hours whether a report can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise SettingsError([f"--out = {folder}: {error.strerror}"]) from None


def _announce(
    console: Console, scenario: Scenario, planned: Sequence[Planned], planned_s: float, url: str
) -> None:
    closed, talks = scenario.closed, sum(one.session is not None for one in planned)
    arriving = {"requests": len(planned) - talks, "conversations": talks}
    listed = " and ".join(f"{number:,} {name}" for name, number in arriving.items() if number)
    what = f"a closed loop of {closed.streams} streams" if closed else listed
    console.print(
        f"{scenario.name}: {what} in {planned_s:,.0f} s to {url}; seed {scenario.seed}",
        soft_wrap=True, highlight=False,
    )  # fmt: skip
