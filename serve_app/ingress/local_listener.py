"""Take requests of HAProxy on the same node over a Unix socket.

A token is one write to its stream's connection, and over loopback TCP the sender pays for both ends of the
network stack: with 256 streams 17 µs per token, 12 over a Unix socket (`docs/architecture.md`).
"""

import asyncio
import logging
import os
import socket
from pathlib import Path

import ray
import uvicorn
from ray.serve._private.constants import RAY_SERVE_ENABLE_HA_PROXY, RAY_SERVE_HAPROXY_CONFIG_FILE_LOC

from serve_app.wire.local_socket import local_socket

logger = logging.getLogger("ray.serve")


def listen_for_haproxy(replica: str) -> None:
    """Have the HTTP server that Ray is about to start in this replica listen on its Unix socket, too."""
    if RAY_SERVE_ENABLE_HA_PROXY:
        node = ray.get_runtime_context().get_node_id()
        folder = Path(RAY_SERVE_HAPROXY_CONFIG_FILE_LOC).parent / node  # as HAProxyManager has it
        listen_beside(folder / local_socket(replica))


def listen_beside(path: Path) -> None:
    """Have uvicorn's servers that start in this process listen on a Unix socket at `path`, too.

    Ray makes the server itself and shows it to nobody, hence the change of the class. The socket is the
    server's own: when Ray stops it, it closes like the port.
    """
    start = uvicorn.Server.startup

    async def start_both(server: uvicorn.Server, sockets: list[socket.socket] | None = None) -> None:
        await start(server, sockets)
        if server.config.is_ssl:
            return  # HAProxy would speak TLS on it, as it does on the port
        try:
            server.servers.append(await _listen(server, path))
        except OSError as error:
            logger.warning("HAProxy reaches this replica by its port only; no socket at %s: %s", path, error)

    uvicorn.Server.startup = start_both  # type: ignore[method-assign, assignment]


async def _listen(server: uvicorn.Server, path: Path) -> asyncio.Server:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # HAProxy may start later
    config = server.config
    listener = await asyncio.get_running_loop().create_unix_server(
        lambda: config.http_protocol_class(  # type: ignore[call-arg]
            config=config, server_state=server.server_state, app_state=server.lifespan.state
        ),
        path=str(path),
        backlog=config.backlog,
    )
    os.chmod(path, 0o600)
    return listener
