"""The journal: a bounded ring of decision records, one per change, and heartbeats in between."""

from collections import deque
from collections.abc import Container, Iterable, Mapping
from typing import Any, Literal

from serve_app.policy.decide import Decision

Kind = Literal["change", "heartbeat", "error", "loss", "version"]
HEARTBEAT_S = 10.0
SPREAD_S = 0.5
"""The least mean time between two heartbeats of different models, so that many models keep their history."""
FLICKER_S = 1.0
KEPT = 500
"""The number of records: an hour of heartbeats and changes, about 2 KB each before compression."""


class Journal:
    """Keeps records as plain data, oldest first, and decides which decisions get a record."""

    def __init__(self) -> None:
        self._records: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._last: dict[str, tuple[float, int, int, str, str]] = {}
        self._mixes: dict[str, dict[str, float]] = {}
        """By deployment, the last targets of the variants."""
        self.seq = 0
        """The number of the newest record; 0 before the first."""

    def load(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Insert an earlier policy's records before the present ones, and renumber the present ones."""
        own = self.records()
        self._records.clear()
        self._records.extend(dict(record) for record in records)
        self.seq = max((int(record["seq"]) for record in self._records), default=0)
        for record in own:
            self.seq += 1
            self._records.append({**record, "seq": self.seq})

    def records(self) -> list[dict[str, Any]]:
        """Return every record kept, oldest first."""
        return list(self._records)

    def models_except(self, deployments: Container[str]) -> set[str]:
        return {
            str(record["model"])
            for record in self._records
            if record.get("model") and record.get("deployment") not in deployments
        }

    def forget_except(self, deployments: Container[str]) -> None:
        """Forget the last decision of all other deployments. Their records stay until newer records come."""
        self._last = {name: last for name, last in self._last.items() if name in deployments}
        self._mixes = {name: mix for name, mix in self._mixes.items() if name in deployments}

    def note(
        self, deployment: str, model: str, mode: str, old: int, ready: int, decision: Decision, now: float
    ) -> dict[str, Any] | None:
        """Return the record of `decision` if it is a change, or if a heartbeat is due; else None.

        A change is a new target, also one of a variant alone, or in mode `advise` a new number of replicas
        wanted.
        """
        last = self._last.get(deployment)
        mix = {name: values["target"] for name, values in decision.variants.items()}
        moved = decision.target != old or mix != self._mixes.get(deployment, mix)
        self._mixes[deployment] = mix
        key = (decision.target, decision.wanted, mode, decision.binding)
        if last is not None and not moved:
            # `wanted` or the binding term may flicker. One record per second is enough to show that.
            heartbeat_s = max(HEARTBEAT_S, SPREAD_S * len(self._last))
            spacing = heartbeat_s if last[1:] == key else FLICKER_S
            if 0 <= now - last[0] < spacing:
                return None
        advised = mode == "advise" and last is not None and last[2] != decision.wanted
        self._last[deployment] = (now, *key)
        kind: Kind = "change" if moved or advised else "heartbeat"
        return self.add(kind, deployment, model, mode, old, ready, decision, now)

    def add(
        self,
        kind: Kind,
        deployment: str,
        model: str,
        mode: str,
        old: int,
        ready: int,
        decision: Decision,
        now: float,
    ) -> dict[str, Any]:
        """Return the new record of a decision. An `error`, a `loss` or a `version` keeps the target."""
        record = {
            "seq": self.seq + 1,
            "at": round(now, 3),
            "deployment": deployment,
            "model": model,
            "kind": kind,
            "mode": mode,
            "old_target": old,
            "new_target": decision.target,
            "wanted": decision.wanted,
            "ready": ready,
            **decision.document(),
        }
        self._records.append(record)
        self.seq += 1
        return record
