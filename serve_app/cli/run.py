"""`tideserve run`: a local `serve run` with progress, supervision and a complete shutdown."""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import yaml

from serve_app import env
from serve_app.cli import CommandError
from serve_app.cli.application_checks import Cpus, local_cpus
from serve_app.cli.config_file import ConfigFile, read_config
from serve_app.cli.gpu_machine import missing_here
from serve_app.cli.listening import LOOPBACK, check_host, check_port, describe_listening, port_taken, url_here
from serve_app.cli.progress import Progress, say, show
from serve_app.cli.ray_processes import Cluster, reap_orphans, stop_descendants
from serve_app.cli.ray_token import prepare_token
from serve_app.cli.run_environment import environment, log_folder
from serve_app.cli.server_log import GONE, PREFIX, ServerLog
from serve_app.haproxy.environment import haproxy_environment
from serve_app.processes import adopt_orphans, signal_on_parents_death
from serve_app.wire.tls import check_tls
from serve_app.zygote.start import start_early_zygotes

STABLE_S = 300.0
"""The delay before a restart is reset after a server that was ready for this many seconds."""
ATTEMPTS = 5
"""The command gives up after this many consecutive starts that never became ready."""

_LONGEST_DELAY_S = 60.0
_POLL_S = 0.25
_GRACE_S = 10.0
_LOST_GRACE_S = 1.0
"""Without the GCS or the raylet no orderly shutdown is possible. All should end within 5 s of the loss."""
_LOCAL = "local"


def add_command(commands: Any) -> None:
    """Register `run`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "run",
        help="start Ray and serve a configuration until Ctrl-C",
        description="Start Ray and serve a configuration until Ctrl-C. The output of Ray, vLLM and torch "
        "goes to a log folder. The command prints the folder's name.",
        epilog="Exit status: 0 after Ctrl-C or SIGTERM, 1 after a failure, 2 for an invalid configuration.",
    )
    add = parser.add_argument
    add("config", type=Path, help="Serve configuration file")
    add("--port", type=int, help="HTTP port; overrides the configuration")
    host_help = (
        f"address to listen on; overrides the configuration: {LOOPBACK} (default) for this machine only, "
        "0.0.0.0 for every network interface"
    )
    add("--host", help=host_help)
    proxy_help = (
        "HTTP proxy: HAProxy (fast; Linux on x86-64) or Ray's own proxy; auto (default) takes HAProxy if it "
        "is installed"
    )
    add("--proxy", choices=("auto", "haproxy", "ray"), default="auto", help=proxy_help)
    add("--address", default=_LOCAL, help="a running Ray cluster; by default a new cluster starts")
    restart_help = "restart after 1 to 60 s if Ray or Serve dies; the first start must have become ready"
    add("--restart", action="store_true", help=restart_help)
    parent_help = "also stop when the process PID ends; PID must be the parent of this command"
    add("--stop-with-parent", type=int, metavar="PID", help=parent_help)
    add("--verbose", action="store_true", help="also print everything that Ray, vLLM and torch write")
    parser.set_defaults(command=run)


@dataclass(frozen=True, slots=True)
class Start:
    """A checked configuration, its address, and the environment of its processes."""

    config: ConfigFile
    host: str
    port: int
    values: dict[str, str]
    address: str
    verbose: bool = False

    @property
    def local(self) -> bool:
        """Whether this command starts, watches and ends the cluster."""
        return self.address == _LOCAL


class Stopping:
    """True once the command must stop: after a signal, or after the end of the process `parent`."""

    def __init__(self, parent: int | None = None) -> None:
        self._parent = parent
        self.signalled = False

    def __bool__(self) -> bool:
        return self.signalled or (self._parent is not None and os.getppid() != self._parent)

    def within(self, seconds: float) -> bool:
        """Wait for at most `seconds`. Returns whether the command must stop."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self:
            time.sleep(_POLL_S)
        return bool(self)

    def listen(self) -> None:
        """Stop at SIGINT, SIGTERM and SIGHUP. A SIGHUP that `nohup` ignores stays ignored."""

        def note(number: int, frame: FrameType | None) -> None:
            self.signalled = True

        signal.signal(signal.SIGINT, note)
        signal.signal(signal.SIGTERM, note)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, note)
        # Under `stty tostop`, SIGTTOU would stop a background process that writes a line.
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)


class Backoff:
    """Delays of 1, 2, 4, … 60 s between the end of one server and the start of the next."""

    def __init__(self) -> None:
        self._ends = 0
        self._never_ready = 0
        self._was_ready = False

    def after(self, ready_s: float | None) -> float | None:
        """Return the seconds until the next start; None to give up.

        The command gives up if the first start, or `ATTEMPTS` consecutive starts, never became ready.

        Args:
            ready_s: Seconds for which the last server was ready; None if it never was.
        """
        if ready_s is None:
            self._never_ready += 1
            if not self._was_ready or self._never_ready >= ATTEMPTS:
                return None
        else:
            self._was_ready = True
            self._never_ready = 0
            if ready_s >= STABLE_S:
                self._ends = 0
        self._ends += 1
        return float(min(_LONGEST_DELAY_S, 2 ** (self._ends - 1)))


def run(options: argparse.Namespace) -> int:
    """Serve until interrupted. Returns 0 after Ctrl-C or SIGTERM, 1 when Ray or Serve has died.

    With `--restart` the server is started again, from the file's current content. Returns 1 if the first
    start, or five consecutive starts, never became ready.

    Raises:
        CommandError: a process cannot be ended; see `stop_descendants`. The exit status is 1.
    """
    stopping = Stopping(options.stop_with_parent)
    if stopping:  # The parent may have ended while this process was loading.
        raise CommandError(
            f"--stop-with-parent = {options.stop_with_parent}: the process did not start this command, "
            "or it has ended"
        )
    start = _prepare(options)
    adopt_orphans()
    stopping.listen()
    backoff = Backoff()
    while True:
        ready_s = serve(start, stopping)
        if stopping:
            return 0
        if not options.restart:
            return 1
        delay = backoff.after(ready_s)
        if delay is None:
            say("not restarted: the server never became ready")
            return 1
        say(f"{time.strftime('%H:%M:%S')}: restarts in {delay:g} s and then reads {options.config} again")
        if stopping.within(delay):
            return 0
        start = _prepare(options)


def _prepare(options: argparse.Namespace) -> Start:
    """Check the options, the configuration and the port before anything starts.

    Raises:
        SettingsError, CommandError: for a bad configuration or option, and a port that is taken.
    """
    local = options.address == _LOCAL
    config = read_config(options.config, Cpus(local_cpus(), certain=True) if local else None)
    values = environment(options.proxy, local=local)
    key = "--host" if options.host else "http_options.host"
    host = check_host(key, options.host or config.host, haproxy=values[env.HAPROXY_FLAG] == "1")
    port = config.port if options.port is None else check_port("--port", options.port)
    if local:  # On another cluster the files need not be on this machine, nor the GPUs.
        config.check_files()
        if lines := missing_here(config):
            raise CommandError("\n  ".join(["this machine cannot serve on GPUs yet:", *lines]))
    if port_taken(port):
        raise CommandError(f"port {port} is taken; stop the program that listens on it, or give --port")
    if local:
        if values[env.LOOPBACK_NODE] == "0":
            try:
                check_tls(values, LOOPBACK)
            except OSError as error:
                raise CommandError(str(error)) from None
        for line in prepare_token(values):
            say(line)
    return Start(config, host, port, values, options.address, options.verbose)


def serve(start: Start, stopping: Stopping) -> float | None:
    """Run one server to its end. Returns the seconds for which it was ready; None if it never was."""
    progress = Progress(url_here(start.host, start.port), start.config.has_page)
    ready_s = None
    with (
        closing(Cluster(lambda: psutil.Process().children(recursive=True) if start.local else ())) as cluster,
        tempfile.TemporaryDirectory(prefix="tideserve-") as folder,
        closing(ServerLog(log_folder(start.values), verbose=start.verbose)) as log,
    ):
        zygotes: list[subprocess.Popen[bytes]] = []
        if start.local:
            with log.writer() as output:
                zygotes = start_early_zygotes(start.config.forked, start.values, Path(folder), output)
        server = start_driver(start, Path(folder), log)
        try:
            while not (stopping or cluster.lost or server.poll() is not None):
                if progress.step():
                    _show_lines(log, log.errors())
                time.sleep(_POLL_S)
                _show_news(log, progress)
                if server.poll() is not None:  # Ray ends with the driver, which is not a failure of Ray
                    break
                for line in cluster.look():
                    say(line)
                if cluster.log_folder and log.move_to(cluster.log_folder):
                    log.named = True
                    progress.say(f"logs: {log.path.parent}/ (Ray, vLLM and torch write to {log.path.name})")
                reap_orphans(server.pid)
            if progress.ready_at is not None:
                ready_s = time.monotonic() - progress.ready_at
            if not stopping and server.poll() is not None:
                _show_news(log, progress)
                status = server.returncode
                how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
                say(f"Serve's driver (`serve run`, process {server.pid}) {how}")
                if status != GONE:
                    _show_lines(log, log.tail())
        finally:
            left = _stop(server, lost=cluster.lost)
            for zygote in zygotes:
                zygote.terminate()
                with suppress(subprocess.TimeoutExpired):  # `left` names it if even SIGKILL did not end it
                    zygote.wait(_LOST_GRACE_S)
            _show_news(log, progress)
        if stopping and not log.named:
            log.remove()  # nobody would look for a log in a temporary folder
    if left:
        # Not restarted: a process that is left may hold a GPU, its memory or a port.
        raise CommandError(f"not all processes could be ended; left after SIGKILL: {'; '.join(left)}")
    return ready_s


def start_driver(start: Start, folder: Path, log: ServerLog) -> subprocess.Popen[bytes]:
    """Start Serve's driver, which starts Ray, on a copy of the configuration in `folder`."""
    document = dict(start.config.document)
    http = document.get("http_options") or {}
    document["http_options"] = {**http, "host": start.host, "port": start.port}
    path = folder / start.config.path.name
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    proxy = "HAProxy" if start.values[env.HAPROXY_FLAG] == "1" else "Ray's own proxy"
    say(f"starting {start.config.path} behind {proxy}; Ctrl-C stops everything")
    for line in describe_listening(start.config.keyless, start.host, start.port, local=start.local):
        say(line)
    if not start.local:
        log.named = True
        say(f"log: {log.path}")
    command = [sys.executable, "-m", "serve_app.cli.driver", "run", str(path), "--address", start.address]
    # The driver gets its own process group: a terminal's Ctrl-C then reaches only this process, which stops
    # everything in order. It stays in this session: Linux shares cores by session (sched_autogroup). With its
    # own session and all cores busy, a client in this terminal waits up to 10 s for a chunk, not 0.1 s.
    values = dict(start.values)
    if start.local:
        values = {**haproxy_environment(values, folder), env.EARLY_ZYGOTES: str(folder)}
    with log.writer() as output:
        return subprocess.Popen(  # noqa: S603
            command,
            env=values,
            process_group=0,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # If this process is killed, the driver gets a SIGINT, shuts Serve down, and Ray ends with it.
            preexec_fn=lambda: signal_on_parents_death(signal.SIGINT),  # noqa: PLW1509 - one thread
        )


def _show_news(log: ServerLog, progress: Progress) -> None:
    for line in log.look():
        if line.startswith(PREFIX):
            progress.say(line.removeprefix(PREFIX))
        else:
            show(line)


def _show_lines(log: ServerLog, lines: Sequence[str]) -> None:
    """Print the log's name, and `lines` of the log."""
    log.named = True
    say(f"the last lines of {log.path}:" if lines else f"the log: {log.path}")
    for line in lines:
        show(f"    {line}")


def _stop(server: subprocess.Popen[bytes], *, lost: bool) -> tuple[str, ...]:
    """End Serve in order if it still runs, then all other processes.

    Returns descriptions of the processes that SIGKILL has not ended.
    """
    say("stopping")
    if server.poll() is None and not lost:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            say(f"Serve did not stop within {_GRACE_S:g} s")
    stopped = stop_descendants(_LOST_GRACE_S if lost else _GRACE_S)
    say(f"stopped; {len(stopped.killed)} processes had to be killed")
    for name in stopped.killed:
        say(f"killed: {name}")
    return stopped.left
