"""Tideserve's own load client among the others: the one that `tideserve loadtest` uses, in one process."""

from __future__ import annotations

import itertools
import json
import sys
from importlib.metadata import version
from typing import Any

from benchmarks.load_clients import tideserve_drive
from benchmarks.load_clients.job import MODEL, Job, Planned, Seen


class Tideserve:
    """Open loop, in this environment."""

    name = "tideserve"

    def version(self) -> str:
        """See `Client`."""
        return version("tideserve")

    def command(self, job: Job) -> list[str]:
        """See `Client`."""
        plan = {
            "url": job.url,
            "model": MODEL,
            "planned": [
                {"at_s": one.at_s, "max_tokens": one.max_tokens, "body": _body(one, job)}
                for one in job.planned
            ],
            "leave_after_s": job.cancel_after_s,
            "retries": 1,
            "out": str(job.directory / "out.jsonl"),
        }
        file = job.directory / "plan.json"
        file.write_text(json.dumps(plan))
        return [sys.executable, tideserve_drive.__file__, str(file)]

    def seen(self, job: Job) -> list[Seen]:
        """See `Client`. Latencies count from the intended time, which is what it reports."""
        return [_seen(json.loads(line)) for line in (job.directory / "out.jsonl").open()]


def _body(one: Planned, job: Job) -> dict[str, object]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": one.prompt}],
        "max_tokens": one.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        **({"stub": dict(job.script)} if job.script else {}),
    }


def _seen(row: dict[str, Any]) -> Seen:
    pieces = row["pieces_s"]
    gaps = tuple(after - before for before, after in itertools.pairwise(pieces))
    success = row["outcome"] in ("answered", "left")
    return Seen(
        order=row["index"],
        ttft_s=pieces[0] - row["at_s"] if pieces else None,
        gaps_s=gaps,
        mean_gap_s=sum(gaps) / len(gaps) if gaps else None,
        tokens=len(pieces),
        error=None if success else f"{row['outcome']}: {row['error']}",
    )
