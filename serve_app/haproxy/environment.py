"""HAProxy's environment variables: bounds on clients, and the command by which Ray Serve starts the
supervisor.

The bounds are not settings, because HAProxy starts before any application.
"""

import ipaddress
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from serve_app import env

_FILES = {
    "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": "proxy.cfg",
    "RAY_SERVE_HAPROXY_SOCKET_PATH": "admin.sock",
    "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": "metrics.sock",
    "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": "",
    "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": "server-state",
}
"""Replaces Ray's defaults in /tmp/haproxy-serve, which all clusters and users of a machine share."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on clients' connections, and the address of HAProxy's own pages."""

    header_timeout_s: int
    """Bound on the time for a request's headers, and again for the first 16 KiB of its body."""
    connections_per_address: int
    """Bound per client address; 0 for half of all connections. Loopback addresses have no bound."""
    admin_host: str
    """Where HAProxy's statistics and metrics pages listen."""

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Self:
        """Read the limits. Raises ValueError that names the variable, its value and the bound."""
        values = {name: environ.get(name) or default for name, default in env.HAPROXY.items()}

        def whole(name: str, least: int, most: int) -> int:
            text = values[name]
            if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
                raise ValueError(f"{name} = {text!r}: must be a whole number from {least} to {most}")
            return int(text)

        timeout_s = whole(env.HEADER_TIMEOUT_S, 1, 3600)
        connections = whole(env.CONNECTIONS_PER_ADDRESS, 0, 1_000_000)
        host = values[env.HAPROXY_ADMIN_HOST]
        try:
            return cls(timeout_s, connections, str(ipaddress.ip_address(host)))
        except ValueError:
            raise ValueError(f"{env.HAPROXY_ADMIN_HOST} = {host!r}: must be an IP address") from None


def haproxy_environment(values: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return `values` with HAProxy's variables, if HAProxy is the proxy. Existing values stay.

    Args:
        values: The environment of Ray's processes.
        folder: A folder of this run for the sockets. A socket's path may have 107 bytes, and Ray's addition
            of a node's number takes 57 of them.

    Raises:
        SettingsError: for a limit out of its bounds.
    """
    from serve_app.settings.settings_error import SettingsError  # noqa: PLC0415  its package takes 0.2 s

    if values.get(env.HAPROXY_FLAG) != "1":
        return dict(values)
    try:
        Limits.read(values)
    except ValueError as error:
        raise SettingsError([str(error)]) from None
    sockets = folder / "h"
    sockets.mkdir(mode=0o700, exist_ok=True)
    paths = {name: str(sockets / file) for name, file in _FILES.items()}
    return {**env.HAPROXY, env.HAPROXY_COMMAND: str(write_launcher(sockets)), **paths, **values}


def write_launcher(folder: Path) -> Path:
    """Write an executable file to `folder` that runs the supervisor with this Python and this package."""
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r}); "
        "from serve_app.haproxy.supervisor import main; sys.exit(main())"
    )
    path = folder / "front"
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -E -c {shlex.quote(code)} "$@"\n')
    path.chmod(0o700)
    return path
