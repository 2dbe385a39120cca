"""A server of a command's own, from a configuration: started, waited for, and stopped."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from serve_app.cli.command_error import CommandError
from serve_app.cli.listening import free_port
from serve_app.cli.progress import ask_ready

_START_S = 600.0
_STOP_S = 60.0
_KILLED_WITHIN_S = 10.0
_FAILED_S = 20.0
"""A model that fails to start is tried again some times; one that has failed for so long is not."""
_POLL_S = 0.5
_TAIL = 2000


@contextmanager
def own_server(config: Path, log: Path, say: Callable[[str], None]) -> Iterator[str]:
    """`tideserve run CONFIG` on a free port, while the block runs; gives its URL.

    Its output goes to `log`.

    Raises:
        CommandError: if it ends before it is ready, a model has failed, or it is not ready in ten minutes.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "serve_app.cli.main", "run", str(config), "--port", str(port)]
    command += ["--verbose", "--stop-with-parent", str(os.getpid())]
    with log.open("wb") as output:
        # A group of its own, so that a terminal's Ctrl-C reaches us alone, and no session of its own: see
        # `tideserve run`.
        server = subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, process_group=0
        )
    try:
        _wait(server, url, log, say)
        yield url
    finally:
        say("stopping the server")
        server.send_signal(signal.SIGINT)
        try:
            server.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            server.kill()
            with suppress(subprocess.TimeoutExpired):  # the kernel may not end it: a GPU or a disk hangs
                server.wait(_KILLED_WITHIN_S)
            say(
                f"the server did not stop within {_STOP_S:g} s and was killed (process {server.pid}); "
                f"see {log}"
            )


def _wait(server: subprocess.Popen[bytes], url: str, log: Path, say: Callable[[str], None]) -> None:
    well = time.monotonic()
    end = well + _START_S
    said: dict[str, str] = {}
    while time.monotonic() < end:
        if server.poll() is not None:
            raise CommandError(f"the server ended before it was ready:\n{_tail(log)}")
        ready, models = ask_ready(url)
        for name, model in models.items():
            phase = str(model.get("phase") or model.get("state"))
            if said.get(name) != phase:
                said[name] = phase
                say(f"{name}: {phase}")
        if ready:
            return
        failed = [f"{name}: {m.get('reason')}" for name, m in models.items() if m.get("state") == "failed"]
        if not failed:
            well = time.monotonic()
        elif time.monotonic() - well > _FAILED_S:
            raise CommandError(f"a model failed: {'; '.join(failed)}; see {log}")
        time.sleep(_POLL_S)
    raise CommandError(f"the server is not ready after {_START_S:g} s; see {log}")


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-_TAIL:]
