"""The Unix socket on which an ingress replica takes requests of the HAProxy on its own node."""

import re


def local_socket(replica: str) -> str:
    """Return the name of the Unix socket on which an ingress replica takes requests of its node's HAProxy.

    `replica` is the replica's tag, or any name that ends with the tag. `tideserve#Ingress#q3k2j1aa` and
    HAProxy's name `SERVE_REPLICA__tideserve-Ingress-q3k2j1aa` both give `i-q3k2j1aa`.
    """
    return f"i-{re.split('[^A-Za-z0-9]', replica)[-1]}"
