"""Ports of this machine: which are taken, and which are free."""

from __future__ import annotations

import socket


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
