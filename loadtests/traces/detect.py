"""Which format a file is in, told from its first lines."""

from __future__ import annotations

from collections.abc import Iterator

from loadtests.traces.csv_formats import AzureFormat, PlainFormat, fields_of
from loadtests.traces.errors import Place, TraceError, shown
from loadtests.traces.formats import Format
from loadtests.traces.json_formats import MooncakeFormat, RequestLogFormat, parsed
from loadtests.traces.lines import LineFile

AUTO = "auto"
FORMATS = (AzureFormat.name, MooncakeFormat.name, PlainFormat.name, RequestLogFormat.name)


def detect(file: LineFile, format: str, model: str | None) -> Format:  # noqa: A002 as `open_trace` calls it
    """The format of `file`, ready to read it.

    Args:
        file: What to look at.
        format: One of `FORMATS`, or `auto`.
        model: Whose requests to read, of a request log.

    Raises:
        TraceError: if it is in none, or not in the one that was asked for.
    """
    number, line = _first(file.first_lines(), file)
    place = file.place(number)
    if format == AUTO:
        return _from_object(line, place, model) if line.startswith("{") else _from_header(line, place)
    if format in (AzureFormat.name, PlainFormat.name):
        header = fields_of(line, place)
        return (AzureFormat if format == AzureFormat.name else PlainFormat)(header, place)
    return MooncakeFormat() if format == MooncakeFormat.name else RequestLogFormat(model)


def _first(lines: Iterator[tuple[int, str]], file: LineFile) -> tuple[int, str]:
    found = next(lines, None)
    if found is None:
        raise TraceError(f"{file.path}: has blank lines only")
    return found


def _from_header(line: str, place: Place) -> Format:
    header = fields_of(line, place)
    names = {name.strip().lower() for name in header}
    # The nearest one says what is missing.
    known = [
        (sum(name.lower() in names for name in kind.columns), kind) for kind in (PlainFormat, AzureFormat)
    ]
    found, kind = max(known, key=lambda pair: pair[0])
    if not found:
        raise place.error(f"unknown format: {shown(line)}; {_wanted()}")
    return kind(header, place)


def _from_object(line: str, place: Place, model: str | None) -> Format:
    document = parsed(line, place)
    for kind in (MooncakeFormat, RequestLogFormat):
        if any(key in document for key in kind.keys[:2]):
            return MooncakeFormat() if kind is MooncakeFormat else RequestLogFormat(model)
    raise place.error(f"unknown format: an object with {shown(', '.join(document))}; {_wanted()}")


def _wanted() -> str:
    headers = " or ".join(",".join(kind.columns) for kind in (PlainFormat, AzureFormat))
    objects = " or ".join(", ".join(kind.keys) for kind in (MooncakeFormat, RequestLogFormat))
    return f"a trace begins with the header {headers}, or has objects with {objects}"
