"""`tideserve run`: `serve run` closed to others, with progress and supervision, and nothing left behind."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import yaml

from serve_app import env
from serve_app.api.api_keys import ApiKeys
from serve_app.cli.backoff import Backoff
from serve_app.cli.config_file import ConfigFile, read_config
from serve_app.cli.descendants import adopt_orphans, reap_orphans, stop_descendants
from serve_app.cli.failure import CommandError
from serve_app.cli.listening import LOOPBACK, check_host, given_host, meaning, url_here
from serve_app.cli.ports import check_port, port_taken
from serve_app.cli.progress import Progress, say
from serve_app.cli.ray_token import prepare_token
from serve_app.cli.room_check import Cpus, local_cpus
from serve_app.cli.run_environment import environment
from serve_app.cli.supervision import Cluster
from serve_app.haproxy.environment import haproxy_environment
from serve_app.haproxy.processes import signal_on_parents_death

_POLL_S = 0.25
_GRACE_S = 10.0
_GRACE_OF_THE_LOST_S = 1.0
"""Nothing ends in good order where the GCS or the raylet is gone, and this is to end within 5 s of it."""
_LOCAL = "local"


def add_command(commands: Any) -> None:
    """Register `run`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "run", help="start Ray and serve a configuration until Ctrl-C"
    )
    parser.add_argument("config", type=Path, help="a Serve configuration file")
    parser.add_argument("--port", type=int, help="HTTP port, in place of the configuration's")
    parser.add_argument(
        "--host",
        help=f"address to listen on, in place of the configuration's: {LOOPBACK}, the default, for this "
        "machine only; 0.0.0.0 for every network interface",
    )
    parser.add_argument(
        "--proxy",
        choices=("auto", "haproxy", "ray"),
        default="auto",
        help="what takes HTTP connections: HAProxy (fast; Linux on x86-64) or Ray's own proxy",
    )
    parser.add_argument("--address", default=_LOCAL, help="a running Ray cluster; by default a new one")
    parser.add_argument(
        "--restart", action="store_true",
        help="start again, after 1 to 60 s, when Ray or Serve dies after the server has been ready",
    )  # fmt: skip
    parser.add_argument(
        "--stop-with-parent", type=int, metavar="PID",
        help="also stop when the process that started this, whose number is PID, ends",
    )  # fmt: skip
    parser.set_defaults(command=run)


@dataclass(frozen=True, slots=True)
class Start:
    """What is started: a checked configuration, where it listens, and the environment of its processes."""

    config: ConfigFile
    host: str
    port: int
    values: dict[str, str]
    address: str

    @property
    def local(self) -> bool:
        """Whether the cluster is ours to start, watch and end."""
        return self.address == _LOCAL


@dataclass(frozen=True, slots=True)
class Ended:
    """A server that ended without having been told to."""

    ready_s: float | None
    """For how long it had been ready; None if it never was."""


def run(options: argparse.Namespace) -> int:
    """Serve until interrupted. Returns 0 after Ctrl-C or SIGTERM, 1 when Ray or Serve has died.

    With `--restart` it is started again, from the file as it then is; 1 if the first start, or five in a row,
    were never ready.
    """
    parent = options.stop_with_parent
    if _is_orphan(parent):  # Told by its number: asked for now, it could have ended while this was loading.
        raise CommandError(f"--stop-with-parent = {parent}: did not start this, or has ended")
    start = _prepare(options)
    adopt_orphans()
    stopping = _stop_on_signals()
    backoff = Backoff()
    while (ended := _serve(start, stopping, parent)) is not None:
        if not options.restart:
            return 1
        delay = backoff.after(ended.ready_s)
        if delay is None:
            say("not started again: it was never ready")
            return 1
        say(f"{time.strftime('%H:%M:%S')}: starts again in {delay:g} s, from {options.config} as it is then")
        if _told_to_stop_within(delay, stopping, parent):
            return 0
        start = _prepare(options)
    return 0


def _prepare(options: argparse.Namespace) -> Start:
    """Find out now what would fail later.

    Raises:
        SettingsError, CommandError: for a bad configuration or option, and a port that is taken.
    """
    local = options.address == _LOCAL
    config = read_config(options.config, Cpus(local_cpus(), told=True) if local else None)
    values = environment(options.proxy, local=local)
    key = "--host" if options.host else "http_options.host"
    given = options.host or given_host(config.document) or LOOPBACK
    host = check_host(key, given, haproxy=values[env.HAPROXY_FLAG] == "1")
    port = config.port if options.port is None else check_port("--port", options.port)
    if local:  # Somebody else's cluster may have files that this machine has not.
        for settings in config.applications.values():
            if settings.http.api_keys_file is not None:
                ApiKeys(settings.http.api_keys_file)
    if port_taken(port):
        raise CommandError(f"port {port} is taken; stop what listens there, or give --port")
    if local:
        for line in prepare_token(values):
            say(line)
    return Start(config, host, port, values, options.address)


def _serve(start: Start, stopping: list[int], parent: int | None) -> Ended | None:
    """Run one server to its end and end all its processes. None if it was told to stop."""
    progress = Progress(url_here(start.host, start.port))
    cluster = Cluster(lambda: psutil.Process().children(recursive=True) if start.local else ())
    ready_s = None
    with tempfile.TemporaryDirectory(prefix="tideserve-") as folder:
        server = _start(start, Path(folder))
        try:
            while not (stopping or cluster.lost or server.poll() is not None):
                progress.step()
                _heed_parent(parent, stopping)
                time.sleep(_POLL_S)
                for line in cluster.look():
                    say(line)
                reap_orphans(server.pid)
            if progress.ready_at is not None:
                ready_s = time.monotonic() - progress.ready_at
            if not stopping and server.poll() is not None:
                say(_end_of(server))
        finally:
            _stop(server, lost=cluster.lost)
    return None if stopping else Ended(ready_s)


def _start(start: Start, folder: Path) -> subprocess.Popen[bytes]:
    document = dict(start.config.document)
    http = document.get("http_options") or {}
    document["http_options"] = {**http, "host": start.host, "port": start.port}
    path = folder / start.config.path.name
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    proxy = "HAProxy" if start.values[env.HAPROXY_FLAG] == "1" else "Ray's own proxy"
    say(f"serve run {start.config.path} on port {start.port}, behind {proxy}")
    for line in meaning(start.config, start.host, start.port, local=start.local):
        say(line)
    command = [sys.executable, "-m", "serve_app.cli.driver", "run", str(path), "--address", start.address]
    # A group of its own: a terminal's Ctrl-C reaches us alone, and we stop things in order. No session of
    # its own: Linux shares out cores by session (sched_autogroup), and with the cores full of CPU engines
    # a client of the same terminal then waited up to 10 s for a chunk, against 0.1 s within the session.
    # A group in a terminal's background stops when it writes, under `stty tostop`, unless it ignores this.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    values = haproxy_environment(start.values, folder) if start.local else start.values
    return subprocess.Popen(  # noqa: S603
        command,
        env=values,
        process_group=0,
        stdin=subprocess.DEVNULL,
        # Killed, we can end nothing: Serve's driver then shuts Serve down as on Ctrl-C, and Ray ends with it.
        preexec_fn=lambda: signal_on_parents_death(signal.SIGINT),  # noqa: PLW1509 - one thread
    )


def _end_of(server: subprocess.Popen[bytes]) -> str:
    status = server.returncode
    how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
    return f"Serve's driver (`serve run`, process {server.pid}) {how}; what it wrote is above"


def _stop(server: subprocess.Popen[bytes], *, lost: bool) -> None:
    """End everything that was started: Serve in good order, if there still is one, then whatever is left."""
    say("stopping")
    if server.poll() is None and not lost:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            say(f"Serve did not stop within {_GRACE_S:g} s")
    killed = stop_descendants(_GRACE_OF_THE_LOST_S if lost else _GRACE_S)
    say(f"stopped; {killed} processes had to be killed")


def _stop_on_signals() -> list[int]:
    """A list that gets each SIGINT, SIGTERM or hang-up; under `nohup` hang-ups stay ignored."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)

    signal.signal(signal.SIGINT, note)
    signal.signal(signal.SIGTERM, note)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, note)
    return received


def _told_to_stop_within(seconds: float, stopping: list[int], parent: int | None) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not stopping:
        _heed_parent(parent, stopping)
        time.sleep(_POLL_S)
    return bool(stopping)


def _heed_parent(parent: int | None, stopping: list[int]) -> None:
    """The end of the process that started this one counts as a hang-up, if `parent` says to heed it."""
    if _is_orphan(parent):
        stopping.append(signal.SIGHUP)


def _is_orphan(parent: int | None) -> bool:
    return parent is not None and os.getppid() != parent
