"""What a trace format is to the reader, and which one a file is in."""

from typing import Protocol

from traces.csv_format import AZURE, CSV_KEYS, PLAIN, CsvFormat, fields_of
from traces.files import LineError, LineFile, Lines
from traces.json_formats import MooncakeFormat, RequestLogFormat, parsed
from traces.trace import Chunk, Ints, shown
from traces.values import Key

AUTO = "auto"
FORMATS = (AZURE, MooncakeFormat.name, PLAIN, RequestLogFormat.name)


class Format(Protocol):
    """Reads the lines of one format."""

    name: str
    """As `open_trace` takes it."""
    keys: tuple[Key, Key, Key]
    """Time, prompt tokens and answer tokens."""
    header_lines: int
    """Lines before the first request, blank ones included."""
    block_tokens: int
    """Tokens of one prefix block; 0 where requests have none."""
    disorder_s: float
    """How much later than a line a request that arrived before it may stand."""
    from_first: bool
    """Whether the trace starts with its first request, not at a time 0 of its own."""

    def requests(self, lines: Lines) -> tuple[Chunk, Ints]:
        """The requests of `lines`, at the times in the file, and for each the index of its line.

        Raises LineError for a wrong line, which need not be the first one.
        """
        ...


def read(lines: Lines, layout: Format) -> tuple[Chunk, Ints]:
    """See `Format.requests`; a `LineError` is that of the first wrong line."""
    try:
        return layout.requests(lines)
    except LineError as error:
        if error.index:
            read(lines.before(error.index), layout)  # raises if one of them is wrong in another way
        raise


def detect(file: LineFile, format: str, model: str | None) -> Format:  # noqa: A002 as `open_trace` calls it
    """The format of `file`, ready to read it.

    Raises TraceError if it is in none, or not in the one that was asked for.
    """
    lines = file.first()
    if format == AUTO:
        format = _of_object(lines) if lines.texts[0].startswith("{") else _of_header(lines)  # noqa: A001
    if format in CSV_KEYS:
        return CsvFormat(format, lines)
    return MooncakeFormat() if format == MooncakeFormat.name else RequestLogFormat(model)


def _of_header(lines: Lines) -> str:
    names = {name.strip().lower() for name in fields_of(lines, 0)}
    # The nearest one says what is missing.
    known = {name: sum(key.name.lower() in names for key in keys) for name, keys in CSV_KEYS.items()}
    best = max(known, key=lambda name: known[name])
    if not known[best]:
        raise lines.error(0, f"unknown format: {shown(lines.texts[0])}; {_known_formats()}")
    return best


def _of_object(lines: Lines) -> str:
    document = parsed(lines, 0)
    for kind in (MooncakeFormat, RequestLogFormat):
        if any(key.name in document for key in kind.keys[:2]):
            return kind.name
    raise lines.error(0, f"unknown format: an object with {shown(', '.join(document))}; {_known_formats()}")


def _known_formats() -> str:
    headers = " or ".join(",".join(key.name for key in keys) for keys in CSV_KEYS.values())
    kinds = (MooncakeFormat, RequestLogFormat)
    objects = " or ".join(", ".join(key.name for key in kind.keys) for kind in kinds)
    return f"a trace begins with the header {headers}, or has objects with {objects}"
