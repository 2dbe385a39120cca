"""The progress of a starting server, read from its `/ready`."""

import contextlib
import json
import time
from typing import Any

from serve_app.cli.http_client import NoAnswerError, fetch

# Short, because nothing watches Ray's processes meanwhile.
_TIMEOUT_S = 2.0
_LONG_S = 30.0
"""After this many seconds in one phase, the reason for it is printed."""


def say(line: str) -> None:
    """Print a line for the user of `tideserve run`."""
    show(f"tideserve: {line}")


def show(line: str) -> None:
    """Print a line unchanged. After a hang-up there is no terminal, and nothing is printed."""
    with contextlib.suppress(OSError):
        print(line, flush=True)


class Progress:
    """Prints the phases of each model of a starting server until all models are ready.

    Args:
        page: Whether the server has the page.
    """

    def __init__(self, url: str, page: bool = True) -> None:
        self._url = url
        self._page = page
        self._started = time.monotonic()
        self._phases: dict[str, tuple[str, float]] = {}
        self._explained: dict[str, str] = {}
        self.ready_at: float | None = None
        """When the server was first ready, on the monotonic clock."""

    def step(self) -> bool:
        """Read `/ready` until the server is ready. Returns whether a model has failed since the last step."""
        if self.ready_at is not None:
            return False
        ready, models = ask_ready(self._url)
        failed = [name for name, model in models.items() if self._note(name, model, ready)]
        if ready:
            self.ready_at = time.monotonic()
            say(f"ready after {self.ready_at - self._started:.1f} s: {self._url}/docs")
            if self._page:
                say(f"open the page in a browser: {self._url}/")
        return bool(failed)

    def say(self, line: str) -> None:
        """Print a line with the seconds since the start."""
        say(f"{time.monotonic() - self._started:5.1f} s  {line}")

    def _note(self, name: str, model: dict[str, Any], ready: bool) -> bool:
        """Print a change of one model's phase. Returns whether the model has just failed."""
        phase, reason = (model["phase"] or model["state"]).replace("_", " "), model["reason"]
        before, since = self._phases.get(name, ("", 0.0))
        if phase != before:
            self._phases[name] = phase, time.monotonic()
            # Ray retries a failed start, and then only the phase shows the failure.
            if "failed" in (phase, model["state"]):
                self.say(f"{name}: failed: {reason}")
                return True
            if not ready:  # the line about readiness follows
                self.say(f"{name}: {phase}")
        elif reason and reason != self._explained.get(name) and time.monotonic() - since > _LONG_S:
            self._explained[name] = reason
            self._phases[name] = phase, time.monotonic()  # the next reason comes _LONG_S later
            self.say(f"{name}: still {phase}: {reason}")
        return False


def ask_ready(url: str) -> tuple[bool, dict[str, Any]]:
    """Return whether the server at `url` is ready, and the models in its `/ready`; none without an answer."""
    try:
        # A proxy would look for the server on its own machine.
        body = json.loads(fetch(f"{url}/ready", {}, _TIMEOUT_S, direct=True).body)
    except (NoAnswerError, ValueError, RecursionError):
        return False, {}
    if not isinstance(body, dict) or "models" not in body:
        return False, {}
    return bool(body["ready"]), body["models"]
