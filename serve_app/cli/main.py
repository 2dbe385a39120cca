"""`tideserve`: the command line's entry point."""

import argparse
import select
import sys
from collections.abc import Sequence

from serve_app import __version__
from serve_app.cli import (
    CommandError,
    ask,
    batch_command,
    canary_command,
    chart_values,
    check,
    explain,
    init_command,
    keys_command,
    knobs_command,
    laboratory,
    run,
    usage_command,
)
from serve_app.cli.terminal_output import LastingStream
from serve_app.settings.settings_error import SettingsError

_READER_LEFT = 141
"""The status of a program that SIGPIPE ends in a shell: 128 and the signal's number."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the process's exit status.

    The status is 1 if the command failed, and 2 for invalid settings or an invalid command line. It is 141 if
    the reader of the output left first, as `| head` does.
    """
    streams = [stream for stream in (sys.stdout, sys.stderr) if stream is not None]
    try:
        status = _run(argv)
        for stream in streams:
            stream.flush()
        return status
    except BrokenPipeError:
        ends = select.poll()
        for stream in streams:
            ends.register(stream, 0)  # an end without a reader is reported even if nothing is asked
        if not ends.poll(0):
            raise  # of another pipe or connection
        for stream in streams:
            LastingStream(stream).flush()  # discards the text that nobody reads
        return _READER_LEFT


def command_line() -> argparse.ArgumentParser:
    """Return the parser of every command. A parsed command is `options.command`."""
    parser = argparse.ArgumentParser(prog="tideserve", description="LLM serving on Ray Serve and vLLM.")
    parser.add_argument("--version", action="version", version=f"tideserve {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for module in (
        init_command, check, run, ask, explain, knobs_command, canary_command, keys_command, usage_command,
        batch_command, chart_values,
    ):  # fmt: skip
        module.add_command(commands)
    laboratory.add_commands(commands)
    return parser


def _run(argv: Sequence[str] | None) -> int:
    options = command_line().parse_args(argv)
    failure: Exception
    try:
        status: int = options.command(options)
        return status
    except ModuleNotFoundError as error:
        package = getattr(options.command, "__module__", "").partition(".")[0]
        if package not in laboratory.PACKAGES:
            raise
        failure = laboratory.missing("this command", error)
    except (SettingsError, CommandError) as error:
        failure = error
    print(f"tideserve: {failure}", file=sys.stderr)
    return 2 if isinstance(failure, SettingsError) else 1


if __name__ == "__main__":
    sys.exit(main())
