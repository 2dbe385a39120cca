"""Take requests of HAProxy on the same node over a Unix socket.

A token is one write to its stream's connection, and over loopback TCP the sender pays for both ends of the
network stack: with 256 streams 17 µs per token, 12 over a Unix socket (`docs/architecture.md`).
"""

from pathlib import Path

import ray
from ray.serve._private.constants import RAY_SERVE_ENABLE_HA_PROXY, RAY_SERVE_HAPROXY_CONFIG_FILE_LOC

from serve_app.patches.uvicorn import listen_beside
from serve_app.wire.local_socket import local_socket


def listen_for_haproxy(replica: str) -> None:
    """Have the HTTP server that Ray is about to start in this replica listen on its Unix socket, too."""
    if RAY_SERVE_ENABLE_HA_PROXY:
        node = ray.get_runtime_context().get_node_id()
        folder = Path(RAY_SERVE_HAPROXY_CONFIG_FILE_LOC).parent / node  # as HAProxyManager has it
        listen_beside(folder / local_socket(replica))
