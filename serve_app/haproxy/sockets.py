"""Listening sockets: opened once, inherited by HAProxy, and handed to the next supervisor."""

import contextlib
import json
import os
import socket
import stat
from collections.abc import Mapping

from serve_app import env

_BACKLOG = 4096
_MOST_SOCKETS = 16
_WAIT_S = 2.0

Address = tuple[str, int]


def listen(host: str, port: int, *, beside: bool = False) -> socket.socket:
    """Return a listening TCP socket. With `beside`, the port may have another socket of this user.

    Raises OSError with the address if the port is taken.
    """
    v6 = ":" in host
    try:
        made = socket.create_server(
            (host, port),
            family=socket.AF_INET6 if v6 else socket.AF_INET,
            backlog=_BACKLOG,
            reuse_port=beside or os.environ.get(env.REUSE_PORT) == "1",
            dualstack_ipv6=v6,
        )
    except OSError as error:
        raise OSError(error.errno, f"{host} port {port}: {str(error.strerror).partition(' (')[0]}") from None
    # Set after `bind`: other programs cannot bind the port, but the supervisor after a killed one can.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return made


def listen_unix(path: str) -> socket.socket:
    """Return a listening Unix socket at `path` for its owner only. An older socket is replaced."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    temporary = f"{path}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    listener.bind(temporary)
    os.chmod(temporary, 0o600)  # before `listen`, because nobody can connect until then
    listener.listen(16)
    os.rename(temporary, path)
    return listener


def accepts(path: str) -> bool:
    """Return at once whether the Unix socket `path` accepts a connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
        probe.setblocking(False)  # with a full backlog, a blocking connect would wait
        probe.connect(path)
        return True
    return False


def private_folder(path: str) -> None:
    """Restrict `path` and the sockets in it to their owner."""
    os.chmod(path, 0o700)
    for entry in os.scandir(path):
        if stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
            os.chmod(entry.path, 0o600)


def take(path: str) -> dict[Address, socket.socket]:
    """Return the sockets of the supervisor that answers at `path`; empty if none answers within 2 s."""
    descriptors: list[int] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_WAIT_S)
        try:
            connection.connect(path)
            message, descriptors, _, _ = socket.recv_fds(connection, 65536, _MOST_SOCKETS)
            addresses = [(host, port) for host, port in json.loads(message)]
            if len(addresses) != len(descriptors):
                raise ValueError(f"{len(descriptors)} sockets came for {len(addresses)} addresses")
        except (OSError, TypeError, ValueError):
            for descriptor in descriptors:  # left open, a socket would queue connections that nobody accepts
                os.close(descriptor)
            return {}
    return {
        address: socket.socket(fileno=number) for address, number in zip(addresses, descriptors, strict=True)
    }


def give(connection: socket.socket, sockets: Mapping[Address, socket.socket]) -> None:
    """Hand `sockets` to a successor. Raises OSError if the successor no longer waits."""
    connection.settimeout(_WAIT_S)
    descriptors = [listener.fileno() for listener in sockets.values()]
    socket.send_fds(connection, [json.dumps(list(sockets)).encode()], descriptors)
