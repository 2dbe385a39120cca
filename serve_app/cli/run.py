"""`tideserve run`: `serve run` with the fast data path, progress, and nothing left behind."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

from serve_app import env
from serve_app.api.api_keys import ApiKeys
from serve_app.cli.config_file import ConfigFile, read_config
from serve_app.cli.descendants import adopt_orphans, stop_descendants

_POLL_S = 0.25
_GRACE_S = 10.0
_HERE = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Without the environment's proxies, which would look for the server on their own machine."""


def add_command(commands: Any) -> None:
    """Register `run`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "run", help="start Ray and serve a configuration until Ctrl-C"
    )
    parser.add_argument("config", type=Path, help="a Serve configuration file")
    parser.add_argument("--port", type=int, help="HTTP port, in place of the configuration's")
    parser.add_argument(
        "--proxy",
        choices=("auto", "haproxy", "ray"),
        default="auto",
        help="what takes HTTP connections: HAProxy (fast; Linux on x86-64) or Ray's own proxy",
    )
    parser.add_argument("--address", default="local", help="a running Ray cluster; by default a new one")
    parser.add_argument(
        "--stop-with-parent", type=int, metavar="PID",
        help="also stop when the process that started this, whose number is PID, ends",
    )  # fmt: skip
    parser.set_defaults(command=run)


def environment(proxy: str) -> dict[str, str]:
    """The environment of Ray's processes; what the operator has set wins, except for `proxy`."""
    values = {**env.ALWAYS, **os.environ}
    fast = env.has_haproxy() if proxy == "auto" else proxy == "haproxy"
    for name, value in env.FAST_PATH.items():
        if proxy == "auto":
            values.setdefault(name, value if fast else "0")
        else:
            values[name] = value if fast else "0"
    for name, port in env.FAST_PATH_PORTS.items():
        if name not in values and _port_taken(port):
            values[name] = str(free_port())
    return values


def run(options: argparse.Namespace) -> int:
    """Serve until interrupted. Returns 0 after Ctrl-C or SIGTERM, 1 when Serve ended by itself."""
    parent = options.stop_with_parent
    if _is_orphan(parent):  # Told by its number: asked for now, it could have ended while this was loading.
        print(f"tideserve: --stop-with-parent = {parent}: did not start this, or has ended", file=sys.stderr)
        return 1
    config = read_config(options.config)
    if options.address == "local":  # Somebody else's cluster may have files that this machine has not.
        _check_key_files(config)
    port = options.port or config.port
    if _port_taken(port):
        print(f"tideserve: port {port} is taken; stop what listens there, or give --port", file=sys.stderr)
        return 1
    adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="tideserve-") as folder:
        stopping = _stop_on_signals()
        server = _start(config, port, options, Path(folder))
        try:
            _report_progress(port, server, stopping, parent)
            while server.poll() is None and not stopping:
                _heed_parent(parent, stopping)
                time.sleep(_POLL_S)
        finally:
            ended_by_itself = not stopping
            _say("tideserve: stopping")
            if server.poll() is None:
                server.send_signal(signal.SIGINT)
                try:
                    server.wait(_GRACE_S)
                except subprocess.TimeoutExpired:
                    _say(f"tideserve: Serve did not stop within {_GRACE_S:g} s")
            killed = stop_descendants(_GRACE_S)
            _say(f"tideserve: stopped; {killed} processes had to be killed")
    return 1 if ended_by_itself else 0


def _check_key_files(config: ConfigFile) -> None:
    """Find out now what an ingress replica would fail with. Raises SettingsError."""
    for settings in config.applications.values():
        if settings.http.api_keys_file is not None:
            ApiKeys(settings.http.api_keys_file)


def _say(line: str) -> None:
    with contextlib.suppress(OSError):  # the terminal is gone, as after a hang-up: nobody is left to tell
        print(line, flush=True)


def _port_taken(port: int) -> bool:
    """HAProxy would bind beside another listener (SO_REUSEPORT) and share its connections."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return True
    return False


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


def _start(
    config: ConfigFile, port: int, options: argparse.Namespace, folder: Path
) -> subprocess.Popen[bytes]:
    document = dict(config.document)
    document["http_options"] = {**(document.get("http_options") or {}), "port": port}
    path = folder / config.path.name
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    values = environment(options.proxy)
    proxy = "HAProxy" if values["RAY_SERVE_ENABLE_HA_PROXY"] == "1" else "Ray's own proxy"
    print(f"tideserve: serve run {config.path} on port {port}, behind {proxy}", flush=True)
    command = [sys.executable, "-m", "ray.serve.scripts", "run", str(path), "--address", options.address]
    # A group of its own: a terminal's Ctrl-C reaches us alone, and we stop things in order. No session of
    # its own: Linux shares out cores by session (sched_autogroup), and with the cores full of CPU engines
    # a client of the same terminal then waited up to 10 s for a chunk, against 0.1 s within the session.
    # A group in a terminal's background stops when it writes, under `stty tostop`, unless it ignores this.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    return subprocess.Popen(command, env=values, process_group=0, stdin=subprocess.DEVNULL)  # noqa: S603


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


def _heed_parent(parent: int | None, stopping: list[int]) -> None:
    """The end of the process that started this one counts as a hang-up, if `parent` says to heed it."""
    if _is_orphan(parent):
        stopping.append(signal.SIGHUP)


def _is_orphan(parent: int | None) -> bool:
    return parent is not None and os.getppid() != parent


def _report_progress(
    port: int, server: subprocess.Popen[bytes], stopping: list[int], parent: int | None
) -> None:
    """Say what each model is doing until all are ready."""
    started = time.monotonic()
    said: dict[str, str] = {}
    while server.poll() is None and not stopping:
        _heed_parent(parent, stopping)
        ready, models = ask_ready(port)
        for name, model in models.items():
            what = model["phase"] or model["state"]
            if said.get(name) != what:
                said[name] = what
                reason = f": {model['reason']}" if model["reason"] and model["state"] == "failed" else ""
                _say(f"tideserve: {time.monotonic() - started:5.1f} s  {name}: {what}{reason}")
        if ready:
            _say(f"tideserve: ready after {time.monotonic() - started:.1f} s")
            _say(f"tideserve: http://127.0.0.1:{port}/docs   Ctrl-C stops everything")
            return
        time.sleep(_POLL_S)


def ask_ready(port: int) -> tuple[bool, dict[str, Any]]:
    """Whether the server on `port` is ready, and its models as `/ready` tells them; none if it does not."""
    try:
        with _HERE.open(f"http://127.0.0.1:{port}/ready", timeout=5) as reply:
            body = json.load(reply)
    except urllib.error.HTTPError as error:
        try:
            body = json.load(error)
        except ValueError:
            return False, {}
    except (OSError, ValueError):
        return False, {}
    if not isinstance(body, dict) or "models" not in body:
        return False, {}
    return bool(body["ready"]), body["models"]
