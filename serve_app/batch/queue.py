"""The lines of open batches as a queue: lease, answer, and in the end join the answers to result files.

Answers are written in parts: an object with some answers, then one transaction that gives the lines their
outcome. Only the first outcome of a line counts. Before a join, all other lines get the outcome `none`. So a
runner may be killed at any moment, and two runners may work at the same time: each line has one answer in the
result files.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import msgspec
from sqlalchemy import Connection, select

from serve_app.batch.file_store import FileStore
from serve_app.batch.records import Batch, File, Status, new_id
from serve_app.batch.results import (
    CANCELLED,
    EXPIRED,
    Tokens,
    answered_line,
    is_success,
    tokens_of,
    unanswered_line,
)
from serve_app.batch.retries import LONGEST_LEASE_S
from serve_app.batch.store import UPLOAD_S, BatchStore, set_status
from serve_app.batch.tables import BATCHES, FILES, LINES
from serve_app.wire.batch_lines import BatchLine, LineAnswer

_AT_ONCE = 1_000
"""The most lines of one statement or one read."""


class LeasedLine(NamedTuple):
    """A line that a runner may send until its lease ends."""

    line: int
    custom_id: str
    offset: int
    length: int
    attempts: int
    """The leases so far, this one included."""


class _Request(msgspec.Struct):
    body: msgspec.Raw


_request = msgspec.json.Decoder(_Request)


@dataclass(frozen=True, slots=True)
class Answered:
    """A line and its final answer."""

    line: LeasedLine
    answer: LineAnswer


class BatchQueue:
    """The runner's view of the store. All methods block, and raise the errors of the two stores."""

    def __init__(self, store: BatchStore, files: FileStore) -> None:
        self.store = store
        self.files = files

    def lease(self, batch_id: str, most: int, now: float, lease_s: float) -> list[LeasedLine]:
        """Take the next free lines, in the order of sending. Nobody else gets them for `lease_s` seconds."""
        free = (
            select(LINES.c.line)
            .where(
                LINES.c.batch_id == batch_id,
                LINES.c.outcome.is_(None),
                (LINES.c.lease_until <= now) | (LINES.c.lease_until > now + LONGEST_LEASE_S),
            )
            .order_by(LINES.c.position)
            .limit(min(most, _AT_ONCE))
            .with_for_update(skip_locked=True)
        )
        taken = (
            LINES.update()
            .where(LINES.c.batch_id == batch_id, LINES.c.line.in_(free))
            .values(lease_until=now + lease_s, attempts=LINES.c.attempts + 1)
            .returning(LINES.c.position, *[LINES.c[name] for name in LeasedLine._fields])
        )
        with self.store.begin() as connection:
            rows = connection.execute(taken).all()
        return [LeasedLine(*row[1:]) for row in sorted(rows)]

    def set_lease(self, batch_id: str, lines: Sequence[int], until: float) -> None:
        """Let the leases of lines end at `until`, Unix time, to renew them or to give them back."""
        with self.store.begin() as connection:
            for some in _slices(lines):
                of_lines = (LINES.c.batch_id == batch_id) & LINES.c.line.in_(some)
                connection.execute(
                    LINES.update().where(of_lines, LINES.c.outcome.is_(None)).values(lease_until=until)
                )

    def requests(self, batch: Batch, lines: Sequence[LeasedLine]) -> list[BatchLine]:
        """Return the bodies of lines, from the input file."""
        name = f"files/{batch.input_file_id}"
        texts = self.files.ranges(name, [(line.offset, line.length) for line in lines])
        return [
            BatchLine(line.line, bytes(_request.decode(text).body))
            for line, text in zip(lines, texts, strict=True)
        ]

    def finish(self, batch_id: str, answered: Sequence[Answered]) -> int:
        """Store final answers. Return how many of them are the first of their line, and count."""
        part = f"{_folder(batch_id)}/{uuid.uuid4().hex}"
        self.files.write(part, [b"".join(map(_part_line, answered))])
        by_line = {each.answer.number: each.answer for each in answered}
        counted = 0
        with self.store.begin() as connection:
            for outcome, wanted in (("completed", True), ("failed", False)):
                lines = sorted(n for n, answer in by_line.items() if is_success(answer) is wanted)
                first = _set_outcome(connection, batch_id, lines, outcome, part)
                if first:
                    tokens = map(sum, zip(*(tokens_of(by_line[line].body) for line in first), strict=True))
                    amounts = {outcome: len(first), **Tokens(*tokens)._asdict()}
                    connection.execute(
                        BATCHES.update()
                        .where(BATCHES.c.id == batch_id)
                        .values({name: BATCHES.c[name] + amount for name, amount in amounts.items()})
                    )
                counted += len(first)
        return counted

    def end(self, batch: Batch, now: float) -> Status | None:
        """Join the answers of a batch to its result files, and give the batch its last status.

        Call it for a batch without lines in flight. Called again after an interruption, it begins anew.

        Returns:
            The last status; None if the batch has ended already, or was cancelled just now.
        """
        last: Status = "cancelled"
        if batch.status != "cancelling":
            with self.store.begin() as connection:
                if batch.status == "in_progress" and not set_status(
                    connection, batch.id, ("in_progress",), "finalizing", now
                ):
                    return None
            counted = self.store.batch(batch.id)
            assert counted is not None
            last = "expired" if counted.left else "completed"
        if batch.in_progress_at is None:  # an interrupted check of the input file may have added lines
            self._delete_lines(batch.id)
        self._close_lines(batch.id)
        reason = CANCELLED if last == "cancelled" else EXPIRED
        output = self._write_file(batch, "output", self._answers(batch.id, "completed"), now)
        errors = None
        try:
            errors = self._write_file(batch, "error", self._errors(batch.id, reason), now)
            with self.store.begin() as connection:
                ended = set_status(
                    connection,
                    batch.id,
                    ("finalizing", "cancelling"),
                    last,
                    now,
                    output_file_id=output.id if output else None,
                    error_file_id=errors.id if errors else None,
                )
                for file in (output, errors) if ended else ():
                    if file is not None:
                        change = FILES.update().where(FILES.c.id == file.id)
                        connection.execute(change.values(stored=True, bytes=file.bytes))
        except Exception:
            self._discard(output, errors)
            raise
        if not ended:
            self._discard(output, errors)
            return None
        self._delete_lines(batch.id)
        self.files.delete(self.files.names(_folder(batch.id)))
        return last

    def discard_leftovers(self) -> None:
        """Delete the lines and parts of batches that have ended. A killed runner may have left them.

        Batches that this database does not know are left alone: another one may have them.
        """
        names = self.files.names(_PARTS)
        with self.store.begin() as connection:
            with_lines = set(connection.execute(select(LINES.c.batch_id).distinct()).scalars())
        ended = self.store.ended([*{_batch_of(name) for name in names} | with_lines])
        self.files.delete([name for name in names if _batch_of(name) in ended])
        for batch_id in with_lines & ended:
            self._delete_lines(batch_id)

    def delete_old(self, now: float) -> int:
        """Delete expired files, interrupted uploads, and batches that ended long ago.

        Several runners may do so at the same time.

        Returns:
            The number of deleted files.
        """
        deleted = 0
        while old := self.store.expire(now):
            self._discard(*old)
            deleted += len(old)
        self.files.delete_torn(now - UPLOAD_S)
        return deleted

    def _discard(self, *files: File | None) -> None:
        """Delete hidden files: first their objects, then their rows."""
        hidden = [file for file in files if file is not None]
        self.files.delete([file.object for file in hidden])
        self.store.forget_files([file.id for file in hidden])

    def _close_lines(self, batch_id: str) -> None:
        """Give all lines without an outcome the outcome `none`, so that no later answer counts."""
        free = (LINES.c.batch_id == batch_id) & LINES.c.outcome.is_(None)
        some = select(LINES.c.line).where(free).limit(_AT_ONCE)
        closed = _AT_ONCE
        while closed:
            with self.store.begin_part() as connection:
                change = LINES.update().where(free, LINES.c.line.in_(some)).values(outcome="none")
                closed = connection.execute(change).rowcount

    def _delete_lines(self, batch_id: str) -> None:
        some = select(LINES.c.line).where(LINES.c.batch_id == batch_id).limit(_AT_ONCE)
        deleted = _AT_ONCE
        while deleted:
            with self.store.begin_part() as connection:
                of_lines = (LINES.c.batch_id == batch_id) & LINES.c.line.in_(some)
                deleted = connection.execute(LINES.delete().where(of_lines)).rowcount

    def _write_file(self, batch: Batch, kind: str, lines: Iterator[bytes], now: float) -> File | None:
        """Write a result file that no client sees yet; None if it would be empty."""
        first = next(lines, None)
        if first is None:
            return None
        kept_s = batch.output_expires_after
        file = File(
            new_id("file"),
            batch.owner,
            "batch_output",
            f"{batch.id}_{kind}.jsonl",
            0,
            int(now),
            None if kept_s is None else int(now) + kept_s,
        )
        size = 0

        def counted() -> Iterator[bytes]:
            nonlocal size
            for line in chain([first], lines):
                size += len(line) + 1
                yield line + b"\n"

        self.store.begin_file(file, limited=False)
        try:
            self.files.write(file.object, counted())
        except Exception:
            self._discard(file)
            raise
        return replace(file, bytes=size)

    def _answers(self, batch_id: str, outcome: str) -> Iterator[bytes]:
        """Yield the lines of all answers with `outcome`. One part is in memory at a time."""
        for part in self.files.names(_folder(batch_id)):
            of_part = (LINES.c.batch_id == batch_id) & (LINES.c.part == part)
            with self.store.begin() as connection:
                query = select(LINES.c.line).where(of_part, LINES.c.outcome == outcome)
                lines = set(connection.execute(query).scalars())
            if not lines:
                continue
            for row in self.files.read(part, 0, self.files.size(part)).splitlines():
                number, _, text = row.partition(b" ")
                if int(number) in lines:
                    yield text

    def _errors(self, batch_id: str, reason: tuple[str, str]) -> Iterator[bytes]:
        yield from self._answers(batch_id, "failed")
        last = 0
        while True:
            query = (
                select(LINES.c.line, LINES.c.custom_id)
                .where(LINES.c.batch_id == batch_id, LINES.c.outcome == "none", LINES.c.line > last)
                .order_by(LINES.c.line)
                .limit(_AT_ONCE)
            )
            with self.store.begin() as connection:
                rows = connection.execute(query).all()
            if not rows:
                return
            for _, custom_id in rows:
                yield unanswered_line(custom_id, reason)
            last = rows[-1][0]


_PARTS = "parts"


def _folder(batch_id: str) -> str:
    return f"{_PARTS}/{batch_id}"


def _batch_of(part: str) -> str:
    return part.split("/")[1]


def _part_line(answered: Answered) -> bytes:
    """Return a line of a part: the number in the input file, a space, and the line of the result file."""
    line = answered_line(answered.line.custom_id, answered.answer)
    return b"%d %b\n" % (answered.line.line, line)


def _slices(lines: Sequence[int]) -> Iterator[Sequence[int]]:
    return (lines[first : first + _AT_ONCE] for first in range(0, len(lines), _AT_ONCE))


def _set_outcome(
    connection: Connection, batch_id: str, lines: Sequence[int], outcome: str, part: str
) -> list[int]:
    """Give lines without an outcome this one. Return these lines."""
    first: list[int] = []
    for some in _slices(lines):
        change = (
            LINES.update()
            .where(LINES.c.batch_id == batch_id, LINES.c.line.in_(some), LINES.c.outcome.is_(None))
            .values(outcome=outcome, part=part)
            .returning(LINES.c.line)
        )
        first += connection.execute(change).scalars()
    return first
