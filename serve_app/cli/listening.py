"""Where a server listens, and what that means."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

from serve_app.cli.config_file import ConfigFile
from serve_app.settings import SettingsError

LOOPBACK = "127.0.0.1"
"""Where a server listens that is told nothing else."""

DEFAULT_PORT = 8000
"""Ray Serve's own."""

_ALL = ("0.0.0.0", "::")


def given_host(document: Mapping[str, Any]) -> str | None:
    """`http_options.host` of a configuration, if it has one."""
    host = (document.get("http_options") or {}).get("host")
    return None if host is None else str(host)


def check_host(key: str, host: str, *, haproxy: bool) -> str:
    """The address `host` names.

    Raises:
        SettingsError: if it is none, or one that HAProxy could not be put in front of: it reaches the ingress
            replicas of its node at 127.0.0.1, and they listen where it does.
    """
    host = LOOPBACK if host == "localhost" else host
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise SettingsError([f"{key} = {host!r}: must be an IP address"]) from None
    if haproxy and host not in (LOOPBACK, _ALL[0]):
        raise SettingsError(
            [
                f"{key} = {host!r}: must be {LOOPBACK} (this machine) or 0.0.0.0 (every network interface) "
                "behind HAProxy; --proxy ray takes any address"
            ]
        )
    return str(address)


def is_open(host: str) -> bool:
    """Whether other machines reach a server that listens on `host`."""
    return not ipaddress.ip_address(host).is_loopback


def url_here(host: str, port: int) -> str:
    """Where this machine reaches a server that listens on `host`."""
    if host in _ALL:
        host = LOOPBACK
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def meaning(config: ConfigFile, host: str, port: int, *, local: bool = True) -> list[str]:
    """What listening there means, for whoever starts it; unless `local`, on the nodes of a cluster."""
    if not is_open(host):
        who = "this machine" if local else "programs on the same node"
        reach = "reaches" if local else "reach"
        return [f"listens on {host}:{port}, which only {who} {reach}; --host 0.0.0.0 opens it"]
    machine = "this machine" if local else "every node"
    where = f"every network interface of {machine}" if host in _ALL else host
    keyless = [name for name, settings in config.applications.items() if settings.http.api_keys_file is None]
    lines = [f"listens on {where}, port {port}: other machines reach it, and what they send is not encrypted"]
    if keyless:
        names = ", ".join(repr(name) for name in keyless)
        lines.append(
            f"WARNING: no API keys: whoever reaches port {port} can use every model of {names} and read "
            "what it does; set http.api_keys_file"
        )
    return lines
