"""The request of `tideserve-python` to a zygote: fork the Python process that a command line describes."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from serve_app.zygote.numa import memory_policy

_LENGTH = struct.Struct("!I")
OOM_SCORE = "/proc/self/oom_score_adj"
_MOST_DESCRIPTORS = 253
"""The kernel's limit per message. `send` raises OSError above this limit."""


class MalformedRequestError(Exception):
    """A zygote received an incomplete or invalid request."""


@dataclass(frozen=True, slots=True)
class Request:
    """A process as `exec` would make it. Its open descriptors are sent with the message."""

    arguments: list[str]
    """The command line after the interpreter."""
    environment: dict[str, str]
    folder: str
    group: int
    """The process group to join."""
    niceness: int
    cpus: list[int]
    """The CPUs that it may run on."""
    memory_policy: list[int]
    oom_score_adj: int
    """Ray raises it for its workers, so that they are killed before the raylet when memory runs out."""
    descriptors: list[int]
    """The descriptor numbers in the new process, in the order of the passed descriptors."""

    @classmethod
    def of_this_process(cls, arguments: list[str], without: int) -> Request:
        """Describe this process, with all of its open descriptors except `without`."""
        numbers = sorted(int(name) for name in os.listdir("/proc/self/fd"))
        passed = [number for number in numbers if number != without and _is_open(number)]
        with open(OOM_SCORE) as file:
            oom_score = int(file.read())
        return cls(
            arguments,
            dict(os.environ),
            os.getcwd(),
            os.getpgrp(),
            os.getpriority(os.PRIO_PROCESS, 0),
            sorted(os.sched_getaffinity(0)),
            memory_policy(),
            oom_score,
            passed,
        )

    def send(self, connection: socket.socket) -> None:
        data = json.dumps(asdict(self)).encode()
        socket.send_fds(connection, [_LENGTH.pack(len(data))], self.descriptors)
        connection.sendall(data)

    @classmethod
    def receive(cls, connection: socket.socket) -> tuple[Request, list[int]]:
        """Return a request, and the numbers of its descriptors in this process.

        After an error no descriptor stays open.

        Raises:
            EOFError: the other side has closed the connection.
            MalformedRequestError: the request is invalid, or some of its descriptors did not arrive.
        """
        head, passed, _, _ = socket.recv_fds(connection, _LENGTH.size, _MOST_DESCRIPTORS)
        try:
            if len(head) < _LENGTH.size:
                raise EOFError
            data = b""
            (length,) = _LENGTH.unpack(head)
            while len(data) < length:
                part = connection.recv(length - len(data))
                if not part:
                    raise EOFError
                data += part
            try:
                request = cls(**json.loads(data))
            except (TypeError, ValueError) as error:
                raise MalformedRequestError(str(error)) from error
            if len(request.descriptors) != len(passed):
                raise MalformedRequestError(f"{len(passed)} of {len(request.descriptors)} descriptors came")
        except BaseException:
            close_all(passed)
            raise
        return request, passed


def close_all(descriptors: Iterable[int]) -> None:
    """Close open descriptors."""
    for number in descriptors:
        os.close(number)


def is_own(connection: socket.socket) -> bool:
    """Return whether the process at the other end of a Unix socket belongs to this user."""
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return bool(uid == os.getuid())


def _is_open(number: int) -> bool:
    """Return whether a descriptor is open. The descriptor that listed the folder is already closed."""
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
