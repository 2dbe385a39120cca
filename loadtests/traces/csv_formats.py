"""Traces with a request a line and a header: our own `plain`, and what Azure publishes."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from loadtests.traces.chunks import empty_chunk
from loadtests.traces.errors import Place, shown
from loadtests.traces.trace import Chunk
from loadtests.traces.values import (
    LATEST_UNIX_S,
    LONGEST_S,
    MOST_TOKENS,
    Row,
    chunk_of_columns,
    count,
    number,
)

DISORDER_S = 60.0
"""Lines of a published trace may stand this much too late."""

_TIME_CHARACTERS = 40  # a time stamp with nine decimals and an offset has 35


def fields_of(line: str, place: Place) -> list[str]:
    """The fields of a line, quoted or not.

    Raises:
        TraceError: for quotes and line breaks that cannot be read.
    """
    try:
        (fields,) = csv.reader([line], skipinitialspace=True)
    except csv.Error as error:
        raise place.error(f"not a line of a CSV file: {error}: {shown(line)}") from None
    return fields


class CsvFormat:
    """Columns found by their names, in any order and any case; others are ignored.

    Args:
        header: The names in the first line.
        place: Where they stand.
        columns: The names of time, prompt and answer.

    Raises:
        TraceError: if one is not in the header.
    """

    block_tokens = 0
    disorder_s = DISORDER_S

    def __init__(self, header: Sequence[str], place: Place, columns: tuple[str, str, str]) -> None:
        names = [name.strip().lower() for name in header]
        missing = [name for name in columns if name.lower() not in names]
        if missing:
            raise place.error(f"no column {', '.join(missing)}; the header has {shown(', '.join(header))}")
        self.header_lines = place.line
        self._columns = columns
        self._places = tuple(names.index(name.lower()) for name in columns)
        self._width = max(self._places) + 1

    def _fields(self, line: str, place: Place) -> tuple[str, str, str]:
        fields = fields_of(line, place)
        if len(fields) < self._width:
            raise place.error(
                f"{len(fields)} columns, and {self._columns[self._places.index(self._width - 1)]} "
                f"is column {self._width}: {shown(line)}"
            )
        first, second, third = (fields[at].strip() for at in self._places)
        return first, second, third

    def _tokens(self, inputs: str, outputs: str, place: Place) -> tuple[int, int]:
        _, input_key, output_key = self._columns
        return count(place, input_key, inputs, 1), count(place, output_key, outputs, 0, MOST_TOKENS)


class PlainFormat(CsvFormat):
    """`arrival_s,input_tokens,output_tokens`: seconds since the start of the trace, and tokens."""

    name = "plain"
    columns = ("arrival_s", "input_tokens", "output_tokens")
    from_first = False

    def __init__(self, header: Sequence[str], place: Place) -> None:
        super().__init__(header, place, self.columns)

    def block(self, lines: bytes) -> Chunk:
        """See `Format`."""
        if not lines.strip():
            return empty_chunk()
        table = np.loadtxt(
            lines.decode().split("\n"),
            delimiter=",",
            usecols=self._places,
            comments=None,
            quotechar='"',
            ndmin=2,
        )
        return chunk_of_columns(table[:, 0], table[:, 1], table[:, 2], LONGEST_S)

    def line(self, line: str, place: Place) -> list[Row]:
        """See `Format`."""
        arrival, inputs, outputs = self._fields(line, place)
        arrival_s = number(place, self._columns[0], arrival, 0.0, LONGEST_S)
        return [Row(arrival_s, *self._tokens(inputs, outputs, place))]


class AzureFormat(CsvFormat):
    """The Azure LLM inference traces: `TIMESTAMP,ContextTokens,GeneratedTokens`.

    Those of 2023 have local times with seven decimals, those of 2024 an offset; a time without one is taken
    for UTC. Read to the microsecond.
    """

    name = "azure"
    columns = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    from_first = True

    def __init__(self, header: Sequence[str], place: Place) -> None:
        super().__init__(header, place, self.columns)

    def block(self, lines: bytes) -> Chunk:
        """See `Format`."""
        if not lines.strip():
            return empty_chunk()
        if b".," in lines:
            raise ValueError("NumPy takes a time that ends with its point")
        # NumPy parses times without an offset, so the one that changes nothing is taken off.
        table = np.loadtxt(
            lines.replace(b"+00:00,", b",").decode().split("\n"),
            delimiter=",",
            usecols=self._places,
            comments=None,
            quotechar='"',
            ndmin=1,
            dtype=[("time", f"U{_TIME_CHARACTERS}"), ("inputs", "f8"), ("outputs", "f8")],
        )
        if np.any(np.strings.str_len(table["time"]) == _TIME_CHARACTERS):
            raise ValueError("a time stamp may have been cut")
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of an offset, which NumPy would ignore
            times = table["time"].astype("datetime64[us]")
        if np.any(np.isnat(times)):
            raise ValueError("a time stamp is missing")
        return chunk_of_columns(
            times.astype(np.int64) / 1e6, table["inputs"], table["outputs"], LATEST_UNIX_S
        )

    def line(self, line: str, place: Place) -> list[Row]:
        """See `Format`."""
        given, inputs, outputs = self._fields(line, place)
        try:
            time = datetime.fromisoformat(given)
        except ValueError:
            raise place.error(f"{self._columns[0]} = {shown(given)}: not a date and time") from None
        unix_s = (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()
        if not 0.0 <= unix_s <= LATEST_UNIX_S:
            raise place.error(f"{self._columns[0]} = {shown(given)}: must be from 1970 to 2100")
        return [Row(unix_s, *self._tokens(inputs, outputs, place))]
