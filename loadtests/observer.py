"""Reads the state of the application under load: replicas, queues, and the policy's decisions."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from loadtests.record import Sample

_TIMEOUT = aiohttp.ClientTimeout(total=10.0)
_POLICY = "llm_autoscaling_"
_COUNTS = {
    f"{_POLICY}wanted_replicas": "wanted",
    f"{_POLICY}target_replicas": "target",
    f"{_POLICY}ready_replicas": "ready",
    f"{_POLICY}starting_replicas": "starting",
    f"{_POLICY}pending_replicas": "pending",
    f"{_POLICY}draining_replicas": "draining",
    "llm_held_requests": "held",
    "llm_waiting_requests": "waiting",
    "llm_running_requests": "running",
}
_STARTS = tuple(_COUNTS)
_NEWEST = 100
"""Records asked for at each look: a policy makes about one in ten seconds for a model."""


def counts(exposition: str) -> dict[str, dict[str, int]]:
    """By model, then by the names of `Sample`'s fields; queues are summed over replicas.

    Raises ValueError if it is not an exposition.
    """
    # A handful of thousands of lines: parsing all took 60 ms of a core that is measured.
    lines = [line for line in exposition.splitlines() if line.startswith(_STARTS)]
    found: dict[str, dict[str, int]] = {}
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            field = _COUNTS.get(sample.name)
            if field is None or not math.isfinite(sample.value):
                continue
            model = found.setdefault(sample.labels.get("model", ""), {})
            model[field] = model.get(field, 0) + round(sample.value)
    return found


class Observer:
    """Asks one application. Values that it does not report are left out."""

    def __init__(self, session: aiohttp.ClientSession, url: str, models: Sequence[str]) -> None:
        self._session = session
        self._url = url.rstrip("/")
        self._models = tuple(models)
        self._decisions: dict[tuple[str, int, float], Mapping[str, Any]] = {}
        self.problem = ""
        """The problem of the last look; empty if there was none."""

    @property
    def decisions(self) -> list[Mapping[str, Any]]:
        """Every record seen, oldest first."""
        return sorted(self._decisions.values(), key=lambda record: float(record["at"]))

    async def replicas(self, model: str) -> tuple[int, int] | None:
        """The ready replicas and the target; None where the server does not report them."""
        document = await self._json("/ready")
        try:
            state = document["models"][model]
            return int(state["replicas"]), int(state["target_replicas"])
        except (KeyError, TypeError, ValueError):
            return None

    async def look(self, at_s: float) -> list[Sample]:
        """One sample per model, at `at_s` of the run."""
        self.problem = ""
        text = await self._text("/metrics")
        try:
            known = counts(text) if text is not None else {}
        except ValueError as error:
            self.problem, known = f"/metrics is no exposition: {error}", {}
        samples = []
        for model in self._models:
            found = known.get(model, {})
            # `/ready` is a second or two ahead of the metrics; the two together would count a replica that
            # has just become ready twice, as ready and as starting.
            there = None if "ready" in found else await self.replicas(model)
            if there is not None:
                ready, target = there
                found = {**found, "ready": ready, "target": target, "starting": max(0, target - ready)}
            if found:
                samples.append(Sample(at_s=round(at_s, 3), model=model, **found))
        return samples

    async def read_decisions(self) -> None:
        """Collect the records that are new."""
        # Numbers may start anew with a new policy, so the newest are asked for, not those after a number.
        document = await self._json(f"/autoscaling/decisions?limit={_NEWEST}")
        records = document.get("decisions") if isinstance(document, dict) else None
        if not isinstance(records, list):
            if document is not None:
                self.problem = "/autoscaling/decisions has no list of decisions"
            return
        for record in records:
            try:
                place = (str(record["deployment"]), int(record["seq"]), float(record["at"]))
            except (KeyError, TypeError, ValueError) as error:
                self.problem = f"/autoscaling/decisions has a record without {error}"
                continue
            self._decisions[place] = record

    async def _json(self, path: str) -> Any:
        text = await self._text(path, also=503)
        try:
            return msgspec.json.decode(text) if text is not None else None
        except msgspec.DecodeError:
            self.problem = f"{path} does not answer with JSON"
            return None

    async def _text(self, path: str, also: int = 200) -> str | None:
        try:
            async with self._session.get(self._url + path, timeout=_TIMEOUT) as reply:
                if reply.status not in (200, also):
                    self.problem = f"{path} answers {reply.status}"
                    return None
                return (await reply.read()).decode(errors="replace")
        except (aiohttp.ClientError, OSError) as error:
            self.problem = f"{path}: {error or type(error).__name__}"
            return None
