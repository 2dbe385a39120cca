"""The Unix socket on which an ingress replica takes requests of the HAProxy on its own node."""

import re


def local_socket(replica: str) -> str:
    """Its file name, in HAProxy's folder of the node.

    `replica` is the replica's tag, or any name that ends with it, as HAProxy's name of the server does: of
    `tideserve#Ingress#q3k2j1aa`, as of `SERVE_REPLICA__tideserve-Ingress-q3k2j1aa`, it is `i-q3k2j1aa`.
    """
    return f"i-{re.split('[^A-Za-z0-9]', replica)[-1]}"
