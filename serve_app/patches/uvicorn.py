"""A Unix socket beside the port of every uvicorn server of a process."""

import asyncio
import logging
import os
import socket
from pathlib import Path

import uvicorn

logger = logging.getLogger("ray.serve")


def listen_beside(path: Path) -> None:
    """Have the uvicorn servers that start in this process listen on a Unix socket at `path`, too.

    Ray gives no access to its server, so the class is changed. The socket belongs to the server: when Ray
    stops the server, the socket closes like the port.
    """
    start = uvicorn.Server.startup

    async def start_both(server: uvicorn.Server, sockets: list[socket.socket] | None = None) -> None:
        await start(server, sockets)
        if server.config.is_ssl:
            return  # HAProxy would speak TLS on the socket, as on the port
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
