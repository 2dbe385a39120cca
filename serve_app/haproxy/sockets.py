"""Listening sockets: opened once, inherited by HAProxy, and handed to the next supervisor."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
from collections.abc import Mapping
from dataclasses import dataclass

from serve_app import env

_BACKLOG = 4096
_MOST_SOCKETS = 16
_WAIT_S = 2.0
_TAKE = b"take\n"
_DONE = b"done\n"


def listen(host: str, port: int) -> socket.socket:
    """Return a listening TCP socket. Raises OSError that names the address if it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if os.environ.get(env.REUSE_PORT) == "1":
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"{host} port {port}: {error.strerror}") from None
    return listener


def listen_unix(path: str) -> socket.socket:
    """Return a listening Unix socket at `path` for its owner only; it replaces what was there."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    temporary = f"{path}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    before = os.umask(0o177)
    try:
        listener.bind(temporary)
    finally:
        os.umask(before)
    listener.listen(16)
    os.rename(temporary, path)
    return listener


def private_folder(path: str) -> None:
    """Let only their owner use `path` and the sockets in it."""
    os.chmod(path, 0o700)
    for entry in os.scandir(path):
        if stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
            os.chmod(entry.path, 0o600)


@dataclass(slots=True)
class Predecessor:
    """The supervisor whose sockets were taken, until it is told that it may stop accepting."""

    connection: socket.socket
    sockets: dict[tuple[str, int], socket.socket]

    def dismiss(self) -> None:
        """Tell it that another HAProxy accepts now, and that its own may finish its streams."""
        with contextlib.suppress(OSError):
            self.connection.sendall(_DONE)
            self.connection.recv(1)  # the end of the connection says that it has let go of its admin socket
        self.connection.close()


def take(path: str) -> Predecessor | None:
    """Return the sockets of the supervisor that answers at `path`; None if none answers within 2 s."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_WAIT_S)
    try:
        connection.connect(path)
        connection.sendall(_TAKE)
        message, descriptors, _, _ = socket.recv_fds(connection, 65536, _MOST_SOCKETS)
        addresses = [(host, port) for host, port in json.loads(message)]
    except (OSError, ValueError):
        connection.close()
        return None
    return Predecessor(connection, dict(zip(addresses, map(_adopt, descriptors), strict=True)))


def _adopt(descriptor: int) -> socket.socket:
    return socket.socket(fileno=descriptor)


def give(connection: socket.socket, sockets: Mapping[tuple[str, int], socket.socket]) -> bool:
    """Hand `sockets` to a successor; return False if it has given up."""
    connection.settimeout(_WAIT_S)
    if connection.recv(len(_TAKE)) != _TAKE:
        return False
    descriptors = [listener.fileno() for listener in sockets.values()]
    socket.send_fds(connection, [json.dumps(list(sockets)).encode()], descriptors)
    return True


def dismissed(connection: socket.socket) -> bool:
    """Return whether the successor says that its HAProxy accepts; False if it has given up."""
    with contextlib.suppress(OSError):
        return connection.recv(len(_DONE)) == _DONE
    return False
