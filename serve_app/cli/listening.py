"""Where a server listens: addresses, ports, and who can reach them."""

import ipaddress
import random
import socket
from collections.abc import Iterable
from itertools import islice

from serve_app.settings.settings_error import SettingsError

LOOPBACK = "127.0.0.1"
"""The default address of a server."""

_ALL = ("0.0.0.0", "::")
# Above the ports of Ray's workers (up to 21599 in benchmarks of several nodes), below Kubernetes' node ports.
_SERVER_PORTS = range(22000, 30000)


def check_host(key: str, host: str, *, haproxy: bool) -> str:
    """Return the IP address that `host` names.

    Raises:
        SettingsError: if `host` names no address, or an address that HAProxy cannot use. HAProxy reaches the
            ingress replicas of its node at 127.0.0.1, and they listen on the same address as HAProxy.
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


def url_here(host: str, port: int) -> str:
    """Return the URL at which this machine reaches a server that listens on `host`."""
    if host in _ALL:
        host = LOOPBACK
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def describe_listening(keyless: Iterable[str], host: str, port: int, *, local: bool = True) -> list[str]:
    """Return lines that say which programs can reach a server that listens on `host`.

    `keyless` names the applications without API keys; unless `local`, the server listens on every node.
    """
    if ipaddress.ip_address(host).is_loopback:
        callers = "this machine" if local else "programs on the same node"
        return [f"listens on {host}:{port}; only {callers} can connect; --host 0.0.0.0 opens it to others"]
    machine = "this machine" if local else "every node"
    where = f"every network interface of {machine}" if host in _ALL else host
    lines = [f"listens on {where}, port {port}; other machines can connect, and the traffic is not encrypted"]
    if names := ", ".join(map(repr, keyless)):
        lines.append(
            f"WARNING: no API keys: any program that can connect to port {port} can use every model of "
            f"{names} and read its metrics and state; set http.api_keys_file"
        )
    return lines


def check_port(key: str, port: object) -> int:
    """Return `port` if it is a port number. Raises SettingsError, which names `key`, if it is not."""
    if not isinstance(port, int) or isinstance(port, bool) or not 1 <= port <= 65535:
        raise SettingsError([f"{key} = {port!r}: must be a whole number from 1 to 65535"])
    return port


def port_taken(port: int) -> bool:
    """Return whether a process listens on `port`.

    HAProxy would bind such a port too (SO_REUSEPORT), and get a part of that process's connections.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return True
    return False


def free_port() -> int:
    """Return a port on which no process listens now; see `free_ports`."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Return `count` distinct ports on which no process listens now.

    The kernel's own range (32768 and up on Linux) is avoided. The kernel could give such a port to an
    outgoing connection before the server binds it. Ray alone opens hundreds of connections while it starts.

    Raises:
        SettingsError: if fewer ports are free.
    """
    start = random.randrange(len(_SERVER_PORTS))  # noqa: S311 - no secret
    turned = (_SERVER_PORTS[(start + step) % len(_SERVER_PORTS)] for step in range(len(_SERVER_PORTS)))
    found = list(islice((port for port in turned if not port_taken(port)), count))
    if len(found) < count:
        first, last = _SERVER_PORTS[0], _SERVER_PORTS[-1]
        raise SettingsError([f"only {len(found)} of {count} ports are free from {first} to {last}"])
    return found
