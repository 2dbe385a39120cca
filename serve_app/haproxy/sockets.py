"""Listening sockets: opened once, inherited by HAProxy, and handed to the next supervisor."""

import contextlib
import json
import os
import socket
import stat
import time
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from serve_app import env

_BACKLOG = 4096
_MOST_SOCKETS = 16
_WAIT_S = 2.0
_DONE = b"done\n"


def listen(host: str, port: int) -> socket.socket:
    """Return a listening TCP socket. Raises OSError that names the address if it is taken."""
    v6 = ":" in host
    try:
        return socket.create_server(
            (host, port),
            family=socket.AF_INET6 if v6 else socket.AF_INET,
            backlog=_BACKLOG,
            reuse_port=os.environ.get(env.REUSE_PORT) == "1",
            dualstack_ipv6=v6,
        )
    except OSError as error:
        raise OSError(error.errno, f"{host} port {port}: {str(error.strerror).partition(' (')[0]}") from None


def listen_unix(path: str) -> socket.socket:
    """Return a listening Unix socket at `path` for its owner only; it replaces what was there."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    temporary = f"{path}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    listener.bind(temporary)
    os.chmod(temporary, 0o600)  # before it listens: until then nobody can connect
    listener.listen(16)
    os.rename(temporary, path)
    return listener


def accepts(path: str) -> bool:
    """Return at once whether somebody listens at the Unix socket `path` and has room for a connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
        probe.setblocking(False)  # connecting to a full one would wait for whoever listens there
        probe.connect(path)
        return True
    return False


def private_folder(path: str) -> None:
    """Let only their owner use `path` and the sockets in it."""
    os.chmod(path, 0o700)
    for entry in os.scandir(path):
        if stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
            os.chmod(entry.path, 0o600)


def wait_until_closed(pid: int, sockets: Iterable[socket.socket], seconds: float) -> None:
    """Wait at most `seconds` until a process has closed the sockets that it inherited, or has ended.

    Until then it takes some of the connections that come to them.
    """
    inodes = {os.fstat(each.fileno()).st_ino for each in sockets}
    end = time.monotonic() + seconds
    while inodes & _open_inodes(pid) and time.monotonic() < end:
        time.sleep(0.002)


def _open_inodes(pid: int) -> set[int]:
    """Return the inodes of the files and sockets that a process has open; none if it has ended."""
    found = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                found.add(os.stat(entry.path).st_ino)
    return found


@dataclass(slots=True)
class Predecessor:
    """The supervisor whose sockets were taken, until it is told that it may stop accepting."""

    connection: socket.socket
    sockets: dict[tuple[str, int], socket.socket]

    def keep(self, addresses: Container[tuple[str, int]]) -> None:
        """Close the sockets of all other addresses. Kept open, each would take connections for nobody."""
        for address in [address for address in self.sockets if address not in addresses]:
            self.sockets.pop(address).close()

    def dismiss(self) -> None:
        """Tell it that another HAProxy accepts now, and that its own may finish its streams."""
        with self.connection, contextlib.suppress(OSError):
            self.connection.sendall(_DONE)
            self.connection.recv(1)  # the end of the connection says that it has let go of its admin socket


def take(path: str) -> Predecessor | None:
    """Return the sockets of the supervisor that answers at `path`; None if none answers within 2 s."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_WAIT_S)
    descriptors: list[int] = []
    try:
        connection.connect(path)
        message, descriptors, _, _ = socket.recv_fds(connection, 65536, _MOST_SOCKETS)
        addresses = [(host, port) for host, port in json.loads(message)]
        if len(addresses) != len(descriptors):
            raise ValueError(f"{len(descriptors)} sockets came for {len(addresses)} addresses")
    except (OSError, TypeError, ValueError):
        for descriptor in descriptors:  # kept open, each would take connections that nobody accepts
            os.close(descriptor)
        connection.close()
        return None
    sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    return Predecessor(connection, dict(zip(addresses, sockets, strict=True)))


def give(connection: socket.socket, sockets: Mapping[tuple[str, int], socket.socket]) -> None:
    """Hand `sockets` to a successor. Raises OSError if it has given up."""
    connection.settimeout(_WAIT_S)
    descriptors = [listener.fileno() for listener in sockets.values()]
    socket.send_fds(connection, [json.dumps(list(sockets)).encode()], descriptors)


def dismissed(connection: socket.socket) -> bool:
    """Return whether the successor says that its HAProxy accepts; False if it has given up."""
    with contextlib.suppress(OSError):
        return connection.recv(len(_DONE)) == _DONE
    return False
