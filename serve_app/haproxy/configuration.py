"""Amend the configuration that Ray Serve writes for HAProxy. Pure.

Ray's template is `ray/serve/_private/haproxy_templates.py`. A missing line is an error, so that an
incompatible version of Ray fails at the start and does not run without protection.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path

from serve_app.haproxy.environment import Limits

_OPEN_FILES_OF_ITS_OWN = 256
_OPEN_FILES_A_CONNECTION = 2.5
"""Two sockets, and pipes for splicing for every fourth connection. HAProxy needs them to start."""
_ALIVE = "tideserve_alive"
FRONTEND = "http_frontend"
"""Where clients connect."""
_SERVERS = "    # Servers in this backend\n"
_ADDRESSES = (
    "backend tideserve_addresses",
    "    stick-table type ipv6 size 1m expire 10s store conn_cur",
)
_GRACE_S = 15
"""How long HAProxy accepts connections after a SIGUSR1, which it gets when its supervisor dies. Ray starts
another supervisor within 3 to 10 s."""
_CHECK_TIMEOUT_MS = 1750
"""With one check per second, a replica that hangs gets no requests after 1 + 1.75 + 0.25 + 1.75 s."""


class UnknownConfigurationError(ValueError):
    """The configuration differs from that of Ray 2.60."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A JSON response of HAProxy itself."""

    status: int
    body: str
    retry_after_s: int | None = None

    @property
    def rule(self) -> str:
        """The line of a configuration that sends this response."""
        retry = "" if self.retry_after_s is None else f" hdr Retry-After {self.retry_after_s}"
        answer = f"status {self.status} content-type application/json{retry} string '{self.body}'"
        return f"    http-request return {answer}"

    @property
    def page(self) -> str:
        """The whole HTTP response, for HAProxy's `errorfile`."""
        retry = [] if self.retry_after_s is None else [f"Retry-After: {self.retry_after_s}"]
        head = [
            f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}",
            "Content-Type: application/json",
            f"Content-Length: {len(self.body)}",
            "Connection: close",
            *retry,
        ]
        return "\r\n".join([*head, "", self.body])


def _error(status: int, code: str, message: str, retry_after_s: int | None = None) -> Answer:
    """Return an error as `serve_app.api.errors` has it, with the `type` that Anthropic's clients expect."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": message, "type": kind, "param": None, "code": code}
    return Answer(status, json.dumps({"type": "error", "error": error}, separators=(",", ":")), retry_after_s)


_NO_INGRESS = "No ingress replica is up."
UNAVAILABLE = _error(503, "ingress_unavailable", _NO_INGRESS, 5)
NOT_DEPLOYED = _error(503, "not_deployed", "No application is deployed yet.", 5)
NOT_FOUND = _error(404, "not_found", "No application has this path.")
HEALTHY = Answer(200, '{"status":"ok"}')
NOT_READY = Answer(503, f'{{"ready":false,"models":{{}},"reason":"{_NO_INGRESS}"}}', 1)
ERROR_PAGES = (
    _error(
        400,
        "invalid_request",
        "This is not a valid HTTP request, or its client ended its half of the connection before the answer.",
    ),
    _error(408, "request_timeout", "The request did not arrive in time."),
    _error(500, "internal_error", "The proxy failed to answer this request."),
    _error(502, "ingress_lost", "The ingress replica ended before it answered.", 1),
    UNAVAILABLE,
    _error(504, "ingress_timeout", "The ingress replica did not answer in time.", 5),
)


def write_pages(folder: Path) -> None:
    """Write the error pages that the amended configuration names."""
    for answer in ERROR_PAGES:
        (folder / f"{answer.status}.http").write_bytes(answer.page.encode())


@dataclass(frozen=True, slots=True)
class Backend:
    """An application as HAProxy knows it."""

    name: str
    prefix: str
    """Its route prefix; empty for `/`."""
    servers: tuple[tuple[str, str], ...]
    """Its ingress replicas: name and address."""


class Source:
    """Ray's configuration, parsed. Raises UnknownConfigurationError if a line is missing."""

    def __init__(self, text: str, limits: Limits) -> None:
        self.text = text
        self.admin_socket = _only(r"^ *stats socket (\S+) ", text)
        self.maxconn = int(_only(r"^ *maxconn (\d+)$", text))
        self.binds = _binds(text, limits.admin_host)
        """Host and port by the frontend that listens there."""
        self.backends = _backends(text)


def keep_servers(text: str, last: str) -> str:
    """Return Ray's configuration `text`. Applications without servers in `text` get their servers from
    `last`.

    While Ray applies changed knobs to the only ingress replica, it does not list this replica, which still
    serves. Without this function each change would cost some 503. A replica that has ended fails its checks.
    """
    before = {backend.name: backend for backend in _backends(last)}
    for backend in _backends(text):
        known = before.get(backend.name)
        if backend.servers or known is None or known.prefix != backend.prefix:
            continue
        lines = re.findall(r"^ +server .*(?<! backup)\n", _section(backend.name, last), re.MULTILINE)
        body = _section(backend.name, text)
        if body.count(_SERVERS) != 1:
            raise UnknownConfigurationError(f"no line {_SERVERS.strip()!r} in Ray's backend {backend.name}")
        head = f"\nbackend {backend.name}\n"  # another backend may have the same body
        text = text.replace(head + body, head + body.replace(_SERVERS, _SERVERS + "".join(lines)))
    return text


def use_unix_sockets(text: str, sockets: Mapping[str, str]) -> str:
    """Return Ray's configuration with Unix sockets as the addresses of the servers in `sockets`."""

    def reached(line: re.Match[str]) -> str:
        socket = sockets.get(line["name"])
        return line[0] if socket is None else f"{line['before']}unix@{socket}"

    return re.sub(r"^(?P<before> +server (?P<name>\S+) )\S+", reached, text, flags=re.MULTILINE)


def has_new_backend(source: Source, last: str) -> bool:
    """Return whether some application of `source` has no replica in common with `last`."""
    before = {backend.name: {name for name, _ in backend.servers} for backend in _backends(last)}
    return any(
        backend.servers and before.get(backend.name, set()).isdisjoint(name for name, _ in backend.servers)
        for backend in source.backends
    )


def amend(
    source: Source,
    limits: Limits,
    descriptors: Mapping[str, int],
    socket: str,
    open_files: int,
) -> str:
    """Return HAProxy's configuration.

    Args:
        source: Ray's configuration.
        descriptors: The inherited listening sockets by frontend.
        socket: HAProxy's own admin socket.
        open_files: HAProxy's limit on open files.
    """
    maxconn = min(source.maxconn, int((open_files - _OPEN_FILES_OF_ITS_OWN) / _OPEN_FILES_A_CONNECTION))
    per_address = limits.connections_per_address or maxconn // 2
    lines: list[str] = []
    section = ""
    for line in source.text.splitlines():
        words = line.split()
        if line and not line[0].isspace():
            section = " ".join(words[:2])
        match [section, *words]:
            case [_, "stats", "socket", *_]:
                lines.append(f"    stats socket unix@{socket} mode 600 level admin")
                lines.append(f"    grace {_GRACE_S}s")
            case [_, "maxconn", _]:
                lines.append(f"    maxconn {maxconn}")
            case [_, "errorfile", *_]:
                continue
            case ["defaults", "mode", "http"]:
                lines += [
                    line,
                    f"    timeout http-request {limits.header_timeout_s}s",
                    f"    timeout check {_CHECK_TIMEOUT_MS}ms",
                    *(f"    errorfile {answer.status} {answer.status}.http" for answer in ERROR_PAGES),
                ]
            case [_, "bind", _, *parameters]:
                lines.append(" ".join([f"    bind fd@{descriptors[section.split()[1]]}", *parameters]))
                if section == "frontend http_frontend":
                    lines += _http_frontend(source, limits, per_address)
            case [_, "http-check", "expect", "status", "200"]:
                # A draining replica answers 503, and accepts requests until its successor runs.
                lines.append("    http-check expect rstring ^(success|DRAINING)$")
            case ["frontend http_frontend", "acl", up, servers, "ge", "1"] if servers.startswith("nbsrv("):
                # A 503 with a reason is better than a Service without pods. The raylet of a node that cannot
                # reach the head ends by itself, and HAProxy with it.
                lines.append(f"    acl {up} always_true")
            case ["listen stats", "stats", "uri", page] | [
                "frontend prometheus",
                "http-request",
                "use-service",
                *_,
                page,
                "}",
            ]:
                # Without a rule for them, other paths would get the 503 of a server without an ingress.
                lines += [line, f"    http-request redirect location {page} if !{{ path_beg {page} }}"]
            case ["backend default_backend", "http-request", "return", *_]:
                lines.append((NOT_FOUND if source.backends else NOT_DEPLOYED).rule)
            case _:
                lines.append(line)
    return "\n".join([*lines, *_checks(source), *_ADDRESSES]) + "\n"


def _http_frontend(source: Source, limits: Limits, per_address: int) -> list[str]:
    """Bound the connections per client address, and answer /health from the checks of the ingress replicas.

    Loopback addresses have no bound, so a local proxy may use all connections. /health works even if all
    replicas are busy.
    """
    usable = "{ req.fhdr(x-request-id) -m reg '^[!-~]{1,256}$' }"  # as the ingress has it
    lines = [
        "    tcp-request connection track-sc0 src table tideserve_addresses if !{ src 127.0.0.0/8 ::1 }",
        f"    tcp-request connection reject if {{ sc0_conn_cur gt {per_address} }}",
        "    unique-id-format %[uuid]",
        "    http-request set-var(txn.request_id) unique-id",
        f"    http-request set-var(txn.request_id) req.fhdr(x-request-id) if {usable}",
        "    http-after-response set-header X-Request-ID %[var(txn.request_id)]"
        " if !{ res.hdr(x-request-id) -m found }",
        "    acl tideserve_looks method GET HEAD",
    ]
    for number, backend in enumerate(source.backends):
        asked = f"if tideserve_looks {{ path {backend.prefix}"
        down = replace(UNAVAILABLE, retry_after_s=1).rule
        up, alive = f"tideserve_up_{number}", f"tideserve_alive_{number}"
        for name, _ in backend.servers:
            lines.append(f"    acl {up} srv_is_up({backend.name}/{name})")
            lines.append(f"    acl {alive} srv_is_up({_ALIVE}/{name})")
        if backend.servers:
            lines.append(f"{HEALTHY.rule} {asked}/health }} {alive}")
        lines.append(f"{down} {asked}/health }}")
        missing = (f" !{up}", f" !{alive}") if backend.servers else ("",)
        lines += [f"{NOT_READY.rule} {asked}/ready }}{lacks}" for lacks in missing]
    return [*lines, f"    http-request wait-for-body time {limits.header_timeout_s}s if METH_POST"]


def _checks(source: Source) -> list[str]:
    """Check whether each replica accepts connections, as busy replicas do."""
    servers = dict(server for backend in source.backends for server in backend.servers)
    return [
        f"backend {_ALIVE}",
        "    load-server-state-from-file none",
        "    default-server inter 1s fastinter 250ms downinter 250ms fall 2 rise 1",
        *(f"    server {name} {address} check" for name, address in servers.items()),
    ]


def _binds(text: str, admin_host: str) -> dict[str, tuple[str, int]]:
    binds = {}
    for name, address in re.findall(
        r"^(?:frontend|listen) (\S+)\n(?:(?![a-z]).*\n)*? +bind (\S+)", text, re.M
    ):
        host, _, port = address.rpartition(":")
        if name in ("prometheus", "stats"):
            host = admin_host
        binds[name] = ("0.0.0.0" if host in ("", "*") else host.strip("[]"), int(port))
    if missing := {"http_frontend", "prometheus", "stats"} - set(binds):
        raise UnknownConfigurationError(f"no bind of {', '.join(sorted(missing))} in Ray's configuration")
    return binds


def _backends(text: str) -> tuple[Backend, ...]:
    found = []
    for name, prefix in re.findall(r"^ +acl is_(\S+) path (/\S*)$", text, re.MULTILINE):
        servers = re.findall(r"^ +server (\S+) (\S+) (?!.*backup$)", _section(name, text), re.MULTILINE)
        found.append(Backend(name, prefix.rstrip("/"), tuple(servers)))
    return tuple(found)


def _section(backend: str, text: str) -> str:
    match = re.search(rf"^backend {re.escape(backend)}\n((?:(?![a-z]).*\n)*)", text, re.MULTILINE)
    if match is None:
        raise UnknownConfigurationError(f"no section backend {backend} in Ray's configuration")
    return match[1]


def _only(pattern: str, text: str) -> str:
    found = re.findall(pattern, text, re.MULTILINE)
    if len(found) != 1:
        raise UnknownConfigurationError(f"{len(found)} lines {pattern!r} in Ray's configuration, not one")
    return str(found[0])
