"""The journal: a bounded ring of decision records, one a change and one now and then."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from serve_app.policy.decide import Decision
from serve_app.policy.decision import Record

HEARTBEAT_S = 10.0
FLICKER_S = 1.0
KEPT = 500
"""Records kept: an hour of heartbeats and the changes between them. About 2 KB each before compression."""


class Journal:
    """Keeps records as plain data, oldest first, and decides which decisions are worth one."""

    def __init__(self, kept: int = KEPT) -> None:
        self._records: deque[dict[str, Any]] = deque(maxlen=kept)
        self._last: dict[str, tuple[float, int, int, str, str]] = {}
        self.seq = 0
        """Of the newest record; 0 before the first."""

    def load(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Take over what an earlier policy has written, so that numbers go on. Own records come after it."""
        own = list(self._records)
        self._records.clear()
        self.seq = 0
        for record in records:
            self._records.append(dict(record))
            self.seq = max(self.seq, int(record["seq"]))
        for record in own:
            self.seq += 1
            self._records.append({**record, "seq": self.seq})

    def records(self) -> list[dict[str, Any]]:
        """Every record kept, oldest first."""
        return list(self._records)

    def note(
        self, deployment: str, model: str, mode: str, old: int, ready: int, decision: Decision, now: float
    ) -> dict[str, Any] | None:
        """The record of `decision` if it is a change, or if a heartbeat is due; else None.

        A change is one of the target; in `advise`, one of what is wanted.
        """
        why = decision.explanation
        moved = decision.target != old
        key = (decision.target, decision.wanted, mode, why.binding)
        last = self._last.get(deployment)
        if last is not None and not moved:
            # What is wanted or what binds may flicker; one record a second says enough of that.
            spacing = HEARTBEAT_S if last[1:] == key else FLICKER_S
            if 0 <= now - last[0] < spacing:
                return None
        # Nothing moves in `advise`; what would have moved is what one wants to read there.
        advised = mode == "advise" and last is not None and last[2] != decision.wanted
        self._last[deployment] = (now, *key)
        return self._add(
            Record(
                seq=self.seq + 1,
                at=round(now, 3),
                deployment=deployment,
                model=model,
                kind="change" if moved or advised else "heartbeat",
                mode=mode,
                old_target=old,
                new_target=decision.target,
                wanted=decision.wanted,
                ready=ready,
                binding=why.binding,
                reason=why.reason,
                counterfactual=why.counterfactual,
                terms=why.terms,
                clamps=why.clamps,
                signals=why.signals,
                ages_s=why.ages_s,
                notes=why.notes,
            )
        )

    def note_error(
        self, deployment: str, model: str, target: int, ready: int, text: str, now: float
    ) -> dict[str, Any]:
        """The record of a policy that raised."""
        return self._add(
            Record(
                seq=self.seq + 1,
                at=round(now, 3),
                deployment=deployment,
                model=model,
                kind="error",
                mode="",
                old_target=target,
                new_target=target,
                wanted=target,
                ready=ready,
                binding="error",
                reason=f"the policy raised {text}; the target is kept",
                counterfactual="nothing changes until the policy works again",
            )
        )

    def _add(self, record: Record) -> dict[str, Any]:
        plain = record.document()
        self._records.append(plain)
        self.seq = record.seq
        return plain
