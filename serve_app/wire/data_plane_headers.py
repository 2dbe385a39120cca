"""What ingress and engine replicas agree on for the data plane: its headers, and its heartbeats."""

TOKEN_HEADER = "X-Tideserve-Token"  # noqa: S105 the name of a header
REQUEST_ID_HEADER = "X-Request-ID"
WAITED_HEADER = "X-Tideserve-Waited-S"
HELD_HEADER = "X-Tideserve-Held-S"
"""Absent where a request was not held."""
HEARTBEATS = "/heartbeats"
"""The path of the stream of heartbeats."""
HEARTBEAT_INTERVAL_S = 0.5
ALIVE = "alive"
"""A heartbeat of a replica that takes requests; any other says why it does not."""
