"""Batches in a store, for tests of what works on them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from serve_app.batch.file_store import FileStore
from serve_app.batch.queue import Answered, BatchQueue, LeasedLine
from serve_app.batch.records import Batch, File, Line, new_id
from serve_app.batch.store import BatchStore
from serve_app.wire.batches import LineAnswer

NOW = 1_700_000_000.0
CHAT = "/v1/chat/completions"
HOUR_S = 3600


class Stored:
    """A queue over a database and a file store; by default over SQLite and a folder."""

    def __init__(self, folder: Path, database_url: str = "", files_url: str = "") -> None:
        self.store = BatchStore(database_url or f"sqlite:///{folder}/batch.db")
        self.files = FileStore(files_url or f"file://{folder}/batch")
        self.monotonic = 0.0
        self.queue = BatchQueue(self.store, self.files, lambda: self.monotonic)

    def add(
        self,
        lines: int,
        owner: str = "",
        model: str = "tide",
        hours: float = 24,
        now: float = NOW,
        line: Callable[[int, str], dict[str, Any]] | None = None,
    ) -> Batch:
        """Add a batch in progress. Its lines have the ids `r1`, `r2`, …"""
        texts = [
            json.dumps(
                {"custom_id": f"r{n}", "method": "POST", "url": CHAT, "body": (line or body)(n, model)}
            ).encode()
            for n in range(1, lines + 1)
        ]
        file = File(new_id("file"), owner, "batch", "in.jsonl", 0, int(now))
        self.files.check(new=self.store.begin_file(file))
        self.files.write(file.object, [b"\n".join(texts)])
        self.store.finish_file(replace(file, bytes=len(b"\n".join(texts))))
        ends = int(now + hours * HOUR_S)
        batch = Batch(new_id("batch"), owner, CHAT, file.id, f"{hours:g}h", "validating", int(now), ends)
        self.store.add_batch(batch, now)
        offset, found = 0, []
        for number, text in enumerate(texts, 1):
            found.append(Line(number, f"r{number}", offset, len(text), number - 1))
            offset += len(text) + 1
        assert self.store.start(batch.id, model, found, now)
        return self.batch(batch)

    def batch(self, batch: Batch) -> Batch:
        """Return its present row."""
        found = self.store.batch(batch.id)
        assert found is not None
        return found

    def results(self, batch: Batch) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the lines of the output and the error file, by `custom_id`. No id may be there twice."""
        batch = self.batch(batch)
        output, errors = self._lines(batch.output_file_id), self._lines(batch.error_file_id)
        ids = [line["custom_id"] for line in (*output, *errors)]
        assert len(ids) == len(set(ids))
        return {each["custom_id"]: each for each in output}, {each["custom_id"]: each for each in errors}

    def _lines(self, file_id: str | None) -> Sequence[dict[str, Any]]:
        if file_id is None:
            return []
        file = self.store.file(file_id, None, NOW)
        assert file is not None
        return list(map(json.loads, self.files.read(file.object, 0, file.bytes).splitlines()))


def body(number: int, model: str = "tide") -> dict[str, Any]:
    """The body of a line."""
    return {"model": model, "messages": [{"role": "user", "content": f"Line {number}"}]}


USAGE = b'{"usage":{"prompt_tokens":3,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1}}}'


def answered(line: LeasedLine, status: int = 200, text: bytes = USAGE) -> Answered:
    """An answer to a line."""
    return Answered(line, LineAnswer(line.line, f"batch_req_{line.line}", status, text))
