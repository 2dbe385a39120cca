"""What the processes of an application listen on, from `/proc`, and what docs/security.md says of it."""

import ipaddress
import os
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

DOCUMENT = Path(__file__).parents[2] / "docs" / "security.md"

_LISTENING = "0A"
_ACCEPTS_CONNECTIONS = 0x10000  # __SO_ACCEPTCON among the flags in /proc/net/unix
_ROLES = (
    ("HAProxy", r"\S*/haproxy |.*serve_app\.haproxy\."),
    ("Ray Serve's proxy", "ray::ProxyActor"),
    ("ingress replica", "ray::ServeReplica:[^:]+:Ingress"),
    ("engine replica", "ray::ServeReplica:[^:]+:Engine-"),
    ("batch runner", "ray::ServeReplica:[^:]+:BatchRunner"),
    ("engine core", "VLLM::EngineCore"),
    ("zygote", "tideserve::Zygote"),
    ("dashboard agent", "ray::DashboardAgent"),
    ("runtime environment agent", "ray::RuntimeEnvAgent"),
    ("every Ray worker", "ray::"),
    ("Serve's driver", r"\S+ -m serve_app\.cli\.driver "),
    ("raylet", r"\S*/raylet "),
    ("GCS", r"\S*/gcs_server "),
    ("dashboard", r"\S+ \S*/dashboard/dashboard\.py|ray-dashboard-|\S+ .*from multiprocessing\."),
    ("autoscaler monitor", r"\S+ (-u )?\S*/monitor\.py"),
)
_WIDTHS = {"loopback": 0, "node": 0, "host": 0, "all": 2}
"""How wide a row of the table may be bound: the node and the host of these tests are 127.0.0.1."""


@dataclass(frozen=True, slots=True)
class Port:
    """A TCP port that a process listens on."""

    role: str
    address: str
    number: int
    pid: int

    @property
    def width(self) -> int:
        address = ipaddress.ip_address(self.address)
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        if address.is_unspecified:
            return 2
        return 0 if address.is_loopback else 1


@dataclass(frozen=True, slots=True)
class Socket:
    """A unix socket with a path that a process accepts connections at."""

    role: str
    path: str
    pid: int


@dataclass(frozen=True, slots=True)
class PortRow:
    """A row of the table of ports."""

    role: str
    ports: str
    count: int
    width: int

    def has(self, number: int, settings: Mapping[str, int]) -> bool:
        if "any" in self.ports:
            return True
        text = re.sub(r"`([^`]+)`", lambda name: str(settings.get(name[1], name[1])), self.ports)
        for low, high in re.findall(r"\b(\d+)(?:\u2013(\d+))?\b", text):
            if int(low) <= number <= int(high or low):
                return True
        return "next free" in text and 8265 <= number < 8365


@dataclass(frozen=True, slots=True)
class SocketRow:
    """A row of the table of sockets."""

    role: str
    pattern: str
    mode: int


def role_of(process: psutil.Process) -> str:
    """What the tables call a process; its command line if they do not know it."""
    line = " ".join(process.cmdline()) + " "
    return next((role for role, pattern in _ROLES if re.match(pattern, line)), line.strip())


def listeners(processes: Iterable[psutil.Process]) -> tuple[list[Port], list[Socket]]:
    """All TCP ports and unix sockets that `processes` accept connections at."""
    owners: dict[int, psutil.Process] = {}
    for process in processes:
        with suppress(FileNotFoundError):  # it has ended
            for inode in _socket_inodes(process.pid):
                owners.setdefault(inode, process)
    ports = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING and (owner := owners.get(int(fields[9]))) is not None:
                address, number = fields[1].split(":")
                ports.append(Port(role_of(owner), _address(address), int(number, 16), owner.pid))
    sockets = []
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        named = len(fields) > 7 and int(fields[3], 16) & _ACCEPTS_CONNECTIONS
        if named and (owner := owners.get(int(fields[6]))) is not None:
            path = str(Path(os.readlink(f"/proc/{owner.pid}/cwd"), fields[7]))  # it may be relative
            sockets.append(Socket(role_of(owner), path, owner.pid))
    return ports, sockets


def _socket_inodes(pid: int) -> list[int]:
    links = []
    for descriptor in os.scandir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # it has been closed
            links.append(os.readlink(descriptor.path))
    return [int(match[1]) for link in links if (match := re.fullmatch(r"socket:\[(\d+)\]", link))]


def _address(text: str) -> str:
    """The kernel's: 32-bit words in the machine's byte order."""
    raw = bytes.fromhex(text)
    words = struct.unpack(f">{len(raw) // 4}I", raw)
    return str(ipaddress.ip_address(struct.pack(f"<{len(words)}I", *words)))


def port_rows() -> list[PortRow]:
    """The table of ports."""
    found = []
    for process, ports, count, bound, *_ in _table("## Ports"):
        number = 1_000 if count == "several" else int(count)
        found.append(PortRow(process, ports, number, _WIDTHS[bound]))
    return found


def socket_rows() -> list[SocketRow]:
    """The table of unix sockets."""
    return [
        SocketRow(process, path.strip("`"), int(mode[:3], 8))
        for process, path, mode, *_ in _table("## Sockets and files")
    ]


def _table(heading: str) -> list[list[str]]:
    section = DOCUMENT.read_text(encoding="utf-8").split(f"\n{heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def unexpected(ports: Iterable[Port], rows: Sequence[PortRow], settings: Mapping[str, int]) -> list[Port]:
    """Ports beyond the table: of a process, each row takes as many as it counts, none bound wider than it.

    The widest are placed first, in rows that name their port before others, so that none takes another's row.

    Args:
        ports: What is listened on.
        rows: The table.
        settings: Ports by the names that the table has for them.
    """
    left: dict[tuple[int, PortRow], int] = {}
    beyond = []
    for port in sorted(ports, key=lambda port: (-port.width, port.number)):
        fitting = [
            row
            for row in rows
            if (row.role == port.role or (row.role == "every Ray worker" and _is_worker(port.role)))
            and row.has(port.number, settings)
            and port.width <= row.width
            and left.setdefault((port.pid, row), row.count) > 0
        ]
        if not fitting:
            beyond.append(port)
            continue
        row = min(fitting, key=lambda row: ("any" in row.ports, row.width))
        left[port.pid, row] -= 1
    return beyond


def _is_worker(role: str) -> bool:
    return role in (
        "Ray Serve's proxy",
        "ingress replica",
        "engine replica",
        "batch runner",
        "every Ray worker",
    )
