"""HAProxy's bounds on clients: environment variables, as it starts before any application has settings."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from serve_app import env


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what clients may hold open, and where HAProxy's own pages are."""

    header_timeout_s: int
    """Bound on the time for a request's headers, and again for the first 16 KiB of its body."""
    connections_per_address: int
    """Bound per client address; 0 for half of all connections. Loopback addresses have no bound."""
    admin_host: str
    """Where HAProxy's statistics and metrics pages listen."""

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Limits:
        """Read the limits. Raises ValueError that names the variable, its value and the bound."""
        return cls(
            header_timeout_s=_whole(environ, env.HEADER_TIMEOUT_S, 1, 3600),
            connections_per_address=_whole(environ, env.CONNECTIONS_PER_ADDRESS, 0, 1_000_000),
            admin_host=_address(environ, env.HAPROXY_ADMIN_HOST),
        )


def _text(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name) or env.HAPROXY[name]


def _whole(environ: Mapping[str, str], name: str, least: int, most: int) -> int:
    text = _text(environ, name)
    if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
        raise ValueError(f"{name} = {text!r}: must be a whole number from {least} to {most}")
    return int(text)


def _address(environ: Mapping[str, str], name: str) -> str:
    text = _text(environ, name)
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise ValueError(f"{name} = {text!r}: must be an IP address") from None
