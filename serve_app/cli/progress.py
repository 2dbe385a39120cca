"""How far a starting server is, as its `/ready` tells it."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.error
import urllib.request
from typing import Any

# Short: while it is waited for, nobody looks whether Ray lives.
_TIMEOUT_S = 2.0
_HERE = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Without the environment's proxies, which would look for the server on their own machine."""


def say(line: str) -> None:
    """A line for whoever watches `tideserve run`."""
    with contextlib.suppress(OSError):  # the terminal is gone, as after a hang-up: nobody is left to tell
        print(f"tideserve: {line}", flush=True)


class Progress:
    """Says what each model of a starting server is doing, until all are ready."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._started = time.monotonic()
        self._said: dict[str, str] = {}
        self.ready_at: float | None = None
        """When it was first ready, on the monotonic clock."""

    def step(self) -> None:
        """Ask once, unless it has been ready."""
        if self.ready_at is not None:
            return
        ready, models = ask_ready(self._url)
        for name, model in models.items():
            what = model["phase"] or model["state"]
            if self._said.get(name) != what:
                self._said[name] = what
                reason = f": {model['reason']}" if model["reason"] and model["state"] == "failed" else ""
                say(f"{self._elapsed():5.1f} s  {name}: {what}{reason}")
        if ready:
            self.ready_at = time.monotonic()
            say(f"ready after {self._elapsed():.1f} s")
            say(f"{self._url}/docs   Ctrl-C stops everything")

    def _elapsed(self) -> float:
        return time.monotonic() - self._started


def ask_ready(url: str) -> tuple[bool, dict[str, Any]]:
    """Whether the server at `url` is ready, and its models as `/ready` tells them; none if it does not."""
    try:
        with _HERE.open(f"{url}/ready", timeout=_TIMEOUT_S) as reply:
            body = json.load(reply)
    except urllib.error.HTTPError as error:
        try:
            body = json.load(error)
        except ValueError:
            return False, {}
    except (OSError, ValueError):
        return False, {}
    if not isinstance(body, dict) or "models" not in body:
        return False, {}
    return bool(body["ready"]), body["models"]
