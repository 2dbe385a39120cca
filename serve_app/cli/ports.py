"""Ports of this machine: which numbers there are, which are taken, and which are free."""

from __future__ import annotations

import socket

from serve_app.settings import SettingsError


def check_port(key: str, port: object) -> int:
    """`port` as the number of a port. Raises SettingsError, naming `key`, if it is none."""
    if not isinstance(port, int) or isinstance(port, bool) or not 1 <= port <= 65535:
        raise SettingsError([f"{key} = {port!r}: must be a whole number from 1 to 65535"])
    return port


def port_taken(port: int) -> bool:
    """Whether somebody listens there. HAProxy would bind beside them (SO_REUSEPORT) and share connections."""
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
