"""A server that runs already, on this machine."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

from benchmarks.chaos.engines import pairs
from benchmarks.chaos.observed import Event
from benchmarks.chaos.processes import Processes
from benchmarks.chaos.server import ChaosError

_TIMEOUT_S = 10.0


class Given:
    """Attacked as it is, and never started or stopped."""

    def __init__(self, url: str, model: str | None, processes: Processes) -> None:
        """Raises ChaosError if it does not answer, or serves no such model."""
        self._url, self._processes = url, processes
        models = _models(url)
        if model is None and len(models) != 1:
            raise ChaosError(f"{url} serves {', '.join(models) or 'no model'}: give --model, one of them")
        self.model = model or models[0]
        if self.model not in models:
            raise ChaosError(f"--model = {self.model!r}: not served; there are {', '.join(models)}")
        self.engines = 0

    def ended(self) -> str | None:
        """When no process of it is left."""
        return None if self._processes.look().processes else "every process of the server has ended"

    async def start(self) -> None:
        """Count its engines, or say that it cannot be started again."""
        if self.engines:
            raise ChaosError(f"{self._url} did not recover, and a server given by --url is not started anew")
        self.engines = len(pairs(self._processes.look()))
        if not self.engines:
            raise ChaosError("--pid: no engine descends from these processes; give that of `tideserve run`")

    async def stop(self) -> None:
        """It is not ours."""

    async def restore(self, event: Event) -> None:
        """It is not ours."""


def _models(url: str) -> list[str]:
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=_TIMEOUT_S) as reply:
            return list(json.load(reply)["models"])
    except urllib.error.HTTPError as error:
        with error:
            raise ChaosError(f"{url}/ready answers {error.code}: not ready to be attacked") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ChaosError(f"--url = {url}: no /ready of Tideserve answers there ({error})") from None
