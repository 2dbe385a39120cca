"""The lines of open batches as a queue: lease, answer, and in the end join the answers to result files.

Answers are written in parts: first the object, then one transaction that gives the lines their outcome. Only
the first outcome of a line counts. Before a join, all other lines get the outcome `none`. So a runner may be
killed at any moment, and two runners may work at the same time: each line has one answer in the result files.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from math import inf
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Row, func, select, tuple_

from serve_app.batch.file_store import DamagedError, FileStore
from serve_app.batch.records import OPEN, Batch, File, LineError, Status, new_id
from serve_app.batch.results import (
    CANCELLED,
    EXPIRED,
    FAILED,
    LOST,
    Tokens,
    answered_line,
    is_success,
    tokens_of,
    unanswered_line,
)
from serve_app.batch.store import UPLOAD_S, BatchStore, set_status
from serve_app.batch.tables import BATCHES, FILES, LINES
from serve_app.database import earlier_time
from serve_app.wire.batches import BatchLine, LineAnswer

_AT_ONCE = 1_000
"""The most lines of one statement or one read."""
LONGEST_LEASE_S = 3600.0
"""A longer lease is of a clock that was ahead, and does not count."""
_LEASE_MARGIN_S = 60.0
"""The longest lease begins after `now` was read: its answer came later."""
_READ_AT_ONCE = 32
"""An object store takes 10 to 50 ms for each part, of which a slow batch makes 43,200 in a day."""
_READ_BYTES = 8 << 20
"""No more are read at once. Parts have up to 4 MB, and their lines are in memory two or three times."""
_READ_AGAIN_S = (0.5, 2.0, 0.0)
"""The waits after failed reads of a part, such as a broken connection. Then its answers count as lost."""
_MANY_PARTS = 1_000
_JUMP_S, _STEADY_S = 60.0, 3600.0
"""A clock has jumped if it is so far from the monotonic clock, and is believed again after an hour."""


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

    def __init__(
        self, store: BatchStore, files: FileStore, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.store = store
        self.files = files
        self._monotonic = monotonic
        self._offset = inf
        """The difference of the clock that deletes and the monotonic clock."""
        self._jumped_at = 0.0

    def lease(self, batch_id: str, most: int, now: float, lease_s: float) -> list[LeasedLine]:
        """Take the next free lines, in the order of sending. Nobody else gets them for `lease_s` seconds."""
        free = (
            select(LINES.c.line)
            .where(
                LINES.c.batch_id == batch_id,
                LINES.c.outcome.is_(None),
                (LINES.c.lease_until <= now)
                | (LINES.c.lease_until > now + LONGEST_LEASE_S + _LEASE_MARGIN_S),
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
        self._change(batch_id, lines, lease_until=until)

    def requests(self, batch: Batch, lines: Sequence[LeasedLine]) -> list[BatchLine]:
        """Return the bodies of lines, from the input file."""
        name = f"files/{batch.input_file_id}"
        texts = self.files.ranges(name, [(line.offset, line.length) for line in lines])
        return [
            BatchLine(line.line, bytes(_request.decode(text).body))
            for line, text in zip(lines, texts, strict=True)
        ]

    def finish(self, batch_id: str, answered: Sequence[Answered]) -> Counter[str]:
        """Store final answers. Return how many of each outcome are the first of their line, and count."""
        by_line = {each.line.line: each.answer for each in answered}
        texts = {each.line.line: answered_line(each.line.custom_id, each.answer) for each in answered}
        part = self._write_part(batch_id, texts)
        counted = Counter[str]()
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
                    counted[outcome] = len(first)
        return counted

    def end(self, batch: Batch, now: float, fault: LineError | None = None) -> Status | None:
        """Join the answers of a batch to its result files, and give the batch its last status.

        Call it for a batch without lines in flight. Called again after an interruption, it begins anew. With
        a `fault` the batch fails, and answers that cannot be read are lost. A later call keeps the fault.

        Returns:
            The last status; None if the status of the batch has just changed.

        Raises:
            DamagedError: an answer cannot be read, and there is no `fault`.
        """
        begun: Status = "cancelling" if batch.status == "cancelling" else "finalizing"
        since = getattr(batch, f"{begun}_at") or now
        values: dict[str, Any] = {"errors": [asdict(fault)]} if fault else {}  # outlives this runner
        with self.store.begin() as connection:
            if not set_status(connection, batch.id, (batch.status,), begun, since, **values):
                return None
            errors = connection.execute(select(BATCHES.c.errors).where(BATCHES.c.id == batch.id)).scalar()
        fault = LineError(**errors[0]) if errors else None
        mine = LINES.c.batch_id == batch.id
        if batch.in_progress_at is None:  # an interrupted check of the input file may have added lines
            self.store.change_lines(LINES.delete(), mine)
        self.store.change_lines(LINES.update().values(outcome="none"), mine & LINES.c.outcome.is_(None))
        last: Status = "failed" if fault else "completed"
        if batch.status == "cancelling":
            last = "cancelled"
        elif not fault and next(self._lines(batch.id, "none"), None) is not None:
            last = "expired"
        reason = {"cancelled": CANCELLED, "failed": FAILED}.get(last, EXPIRED)
        answers, failures = (self._answers(batch.id, each, bool(fault)) for each in ("completed", "failed"))
        output = self._write_file(batch, "output", answers, now)
        failed = None
        try:
            failures = chain(failures, self._unanswered(batch.id, reason))
            failed = self._write_file(batch, "error", failures, now)
            with self.store.begin() as connection:
                query = select(LINES.c.outcome, func.count()).where(mine).group_by(LINES.c.outcome)
                counts = Counter[str](dict(connection.execute(query).all()))
                values = {
                    "output_file_id": output and output.id,
                    "error_file_id": failed and failed.id,
                    "completed": counts["completed"],
                    "failed": counts["failed"] + counts["lost"],
                }
                ended = set_status(connection, batch.id, OPEN, last, now, **values)
                for file in (output, failed) if ended else ():
                    if file is not None:
                        change = FILES.update().where(FILES.c.id == file.id)
                        connection.execute(change.values(stored=True, bytes=file.bytes))
        except Exception:
            self._discard(output, failed)
            raise
        if not ended:
            self._discard(output, failed)
            return None
        self.store.change_lines(LINES.delete(), mine)
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
            self.store.change_lines(LINES.delete(), LINES.c.batch_id == batch_id)

    def delete_old(self, now: float) -> int:
        """Delete expired files, interrupted uploads, and batches that ended long ago.

        Several runners may do so at the same time. Nothing is deleted until the earlier of `now` and the
        database's time has run for an hour without a jump: a clock may be set years ahead. Return the number
        of deleted files.
        """
        with self.store.begin() as connection:
            now = earlier_time(connection, now)
        at = self._monotonic()
        offset, self._offset = self._offset, now - at
        if abs(self._offset - offset) > _JUMP_S:
            self._jumped_at = at
        if at - self._jumped_at < _STEADY_S:
            return 0
        deleted = 0
        while some := self._discard(*self.store.expire(now)):  # else only such as cannot be deleted
            deleted += some
        self.files.delete_torn(now - UPLOAD_S)
        return deleted

    def _discard(self, *files: File | None) -> int:
        """Delete hidden files: first their objects, then their rows. Return how many could be deleted."""
        given = [file.id for file in files if file is not None]
        mine = FILES.c.id.in_(given) & ~FILES.c.stored
        with self.store.begin() as connection:  # a commit without an answer may have shown some
            locked = connection.execute(FILES.update().where(mine).values(stored=False).returning(FILES.c.id))
            ids = set(locked.scalars())
        hidden = [file for file in files if file is not None and file.id in ids]
        undeleted = self.files.delete([file.object for file in hidden])
        gone = [file.id for file in hidden if file.object not in undeleted]
        self.store.forget_files(gone)
        return len(gone)

    def _write_file(self, batch: Batch, kind: str, lines: Iterator[bytes], now: float) -> File | None:
        """Write a result file that no client sees yet; None if it would be empty."""
        first = next(lines, None)
        if first is None:
            return None
        kept_s, name = batch.output_expires_after, f"{batch.id}_{kind}.jsonl"
        expires_at = None if kept_s is None else int(now) + kept_s
        file = File(new_id("file"), batch.owner, "batch_output", name, 0, int(now), expires_at)
        self.files.check()
        self.store.begin_file(file, limited=False)
        try:
            size = self.files.write(file.object, (line + b"\n" for line in chain([first], lines)))
        except Exception:
            self._discard(file)
            raise
        return replace(file, bytes=size)

    def _write_part(self, batch_id: str, answers: Mapping[int, bytes]) -> str:
        """Write a part of result lines, by the number of their line in the input file. Return its name."""
        self.files.check()
        part = f"{_folder(batch_id)}/{uuid.uuid4().hex}"
        self.files.write(part, [b"".join(b"%d %b\n" % answer for answer in answers.items())])
        return part

    def _answers(self, batch_id: str, outcome: str, lose: bool) -> Iterator[bytes]:
        """Yield result lines. To `lose` those of damaged parts gives their lines the outcome `lost`."""
        parts = self._parts(batch_id, outcome)
        if len(parts) > _MANY_PARTS:  # a join that begins anew finds these answers in larger parts
            small = {part: lines for part, lines in parts.items() if len(lines) < _READ_AT_ONCE}
            for answers in self._read(batch_id, small, lose):
                self._change(batch_id, answers, part=self._write_part(batch_id, answers))
            parts = self._parts(batch_id, outcome)
        yield from chain.from_iterable(each.values() for each in self._read(batch_id, parts, lose))

    def _parts(self, batch_id: str, outcome: str) -> Mapping[str, Set[int]]:
        parts: defaultdict[str, set[int]] = defaultdict(set)
        for row in self._lines(batch_id, outcome):
            parts[row.part].add(row.line)
        return parts

    def _read(self, batch_id: str, parts: Mapping[str, Set[int]], lose: bool) -> Iterator[dict[int, bytes]]:
        """Yield the wanted lines of some parts, which are read at once."""

        def read(part: str) -> dict[int, bytes]:
            found = _whole_lines(self._whole(part), parts[part])
            if not lose and len(found) < len(parts[part]):
                raise DamagedError(f"the object {part} is missing or damaged")
            return found

        with ThreadPoolExecutor(_READ_AT_ONCE) as readers:
            at_once, names = 1, iter(parts)
            while some := list(islice(names, at_once)):
                answers = dict(chain.from_iterable(found.items() for found in readers.map(read, some)))
                lost = set().union(*(parts[part] for part in some)) - answers.keys()
                self._change(batch_id, lost, outcome="lost")
                size = sum(map(len, answers.values())) or 1
                yield answers
                answers.clear()  # before the next are read
                at_once = max(1, min(_READ_AT_ONCE, 2 * at_once, len(some) * _READ_BYTES // size))

    def _whole(self, part: str) -> bytes:
        """Return a part; nothing if it is missing, or if several reads fail."""
        for wait_s in _READ_AGAIN_S:
            try:
                return self.files.whole(part)
            except DamagedError as error:
                if isinstance(error.__cause__, FileNotFoundError):
                    break
            time.sleep(wait_s)
        return b""

    def _lines(self, batch_id: str, outcome: str) -> Iterator[Row[Any, Any, Any, Any]]:
        """Yield the lines with `outcome`, in the order of sending, in which an index has them."""
        # A check that began anew in a later version may have given a position twice.
        place, last = tuple_(LINES.c.position, LINES.c.line), (-1, 0)
        while True:
            query = (
                select(LINES.c.position, LINES.c.line, LINES.c.custom_id, LINES.c.part)
                .where(LINES.c.batch_id == batch_id, LINES.c.outcome == outcome, place > last)
                .order_by(LINES.c.position, LINES.c.line)
                .limit(_AT_ONCE)
            )
            with self.store.begin() as connection:
                rows = connection.execute(query).all()
            yield from rows
            if len(rows) < _AT_ONCE:
                return
            last = (rows[-1].position, rows[-1].line)

    def _change(self, batch_id: str, lines: Iterable[int], **values: Any) -> None:
        for some in _slices(list(lines)):
            of_lines = (LINES.c.batch_id == batch_id) & LINES.c.line.in_(some)
            with self.store.begin() as connection:
                connection.execute(LINES.update().where(of_lines).values(values))

    def _unanswered(self, batch_id: str, reason: tuple[str, str]) -> Iterator[bytes]:
        for outcome, (code, message) in (("lost", LOST), ("none", reason)):
            for row in self._lines(batch_id, outcome):
                yield unanswered_line(row.custom_id, (code, message.format(row.part)))


_PARTS = "parts"


def _folder(batch_id: str) -> str:
    return f"{_PARTS}/{batch_id}"


def _batch_of(part: str) -> str:
    return part.split("/")[1]


def _whole_lines(part: bytes, wanted: Set[int]) -> dict[int, bytes]:
    """Return the wanted lines of a part. After a loss of power, it may end early or have zeros."""
    rows = (row.partition(b" ") for row in part.split(b"\n")[:-1] if row.endswith(b"}") and b"\0" not in row)
    numbers = {b"%d" % line: line for line in wanted}
    return {numbers[number]: text for number, _, text in rows if number in numbers}


def _slices(items: Sequence[Any], size: int = _AT_ONCE) -> Iterator[Sequence[Any]]:
    return (items[first : first + size] for first in range(0, len(items), size))


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
