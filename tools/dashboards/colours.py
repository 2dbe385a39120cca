"""One colour for each meaning, the same on every dashboard, readable on Grafana's light and dark ground.

The hues are those of the project's pages and pictures. Of a page's two sets the light one serves here, except
where it is too dark for Grafana's dark panels (#181b1f): a line needs a contrast of 3:1 to either ground.
"""

from __future__ import annotations

from loadtests.drawing.palette import LIGHT

PLAIN = "text"
"""Grafana's own colour of text, which follows its theme."""

READY = LIGHT["ready"]
STARTING = LIGHT["starting"]
DRAINING = LIGHT["draining"]
PENDING = LIGHT["other"]
WANTED = "#b0478a"  # the palette's #a63d7f has 2.96:1 to the dark ground
ARRIVALS = LIGHT["arrivals"]
HELD = LIGHT["held"]
QUEUED = LIGHT["queued"]

OK = LIGHT["ok"]
WARNING = LIGHT["warming"]
MISSED = LIGHT["missed"]

PARTS = {"cold wait": HELD, "queue wait": QUEUED, "prefill": OK}
"""Where a time to first token goes."""

STATES = {
    "ready": READY,
    "starting": STARTING,
    "pending": PENDING,
    "draining": DRAINING,
    "wanted": WANTED,
    "target": PLAIN,
}
"""Replicas, and the GPUs they hold."""

PERCENTILES = {"P50": LIGHT["idle"], "P95": LIGHT["ttft"], "P99": WANTED}

OUTCOMES = {"ok": OK, "rejected": WARNING, "error": MISSED, "client_error": PENDING, "abandoned": DRAINING}

_LOAD = dict.fromkeys(("arrivals", "ttft", "queue", "queue_tokens", "kv_cache", "forecast"), READY)
_STANDING = dict.fromkeys(("wake", "keep_alive", "schedule", "min_replicas"), OK)
_HELD_BACK = dict.fromkeys(("delay", "signals", "hold", "mode"), DRAINING)
TERMS = {**_LOAD, **_STANDING, **_HELD_BACK, "max_replicas": MISSED, "idle": PENDING}
"""What sets a target: load, standing orders, what holds a target back, and the limit."""
