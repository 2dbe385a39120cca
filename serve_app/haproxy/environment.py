"""The environment in which Ray Serve starts our supervisor in place of HAProxy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from serve_app import env
from serve_app.haproxy.limits import Limits
from serve_app.haproxy.supervisor import write_launcher
from serve_app.settings.settings_error import SettingsError

_FILES = {
    "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": "proxy.cfg",
    "RAY_SERVE_HAPROXY_SOCKET_PATH": "admin.sock",
    "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": "metrics.sock",
    "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": "",
    "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": "server-state",
}
"""Ray's defaults are in /tmp/haproxy-serve, which all clusters and users of a machine would share."""


def haproxy_environment(values: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return `values` with the variables that HAProxy needs, if it is the proxy. Values that are set stay.

    Args:
        values: The environment of Ray's processes.
        folder: A folder of this run, for its sockets. Ray adds a node's number to their paths: 57 bytes, of
            the 107 that the path of a socket may have.

    Raises:
        SettingsError: for a limit out of its bounds.
    """
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
