"""`open_trace`: a file, or the request logs of a fleet, as a trace to replay."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from traces.files import LineFile, TracePath, name_of, trace_files
from traces.formats import AUTO, FORMATS, Format, RequestLogFormat, detect, read
from traces.scale import Source, at_rate, from_zero, in_order, merge, stretch, window
from traces.trace import CHUNK_REQUESTS, ArrayTrace, Chunk, TraceError, cap_inputs, shown, split

_MOST = 1_000.0


@dataclass(frozen=True, slots=True)
class Scaling:
    """Changes to a trace before it is replayed; see `open_trace`."""

    rate: float = 1.0
    time: float = 1.0
    start_s: float = 0.0
    duration_s: float | None = None
    max_input_tokens: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _within("rate", self.rate, 0.0, _MOST)
        _within("time", self.time, 0.0, _MOST)
        if not 0.0 <= self.start_s < math.inf:
            raise TraceError(f"start_s = {self.start_s!r}: must be 0 or above")
        if self.duration_s is not None:
            _within("duration_s", self.duration_s, 0.0, math.inf)
        if self.max_input_tokens is not None and self.max_input_tokens < 1:
            raise TraceError(f"max_input_tokens = {self.max_input_tokens!r}: must be 1 or above")
        if self.seed < 0:
            raise TraceError(f"seed = {self.seed!r}: must be 0 or above")


def open_trace(
    path: TracePath | Sequence[TracePath],
    *,
    format: str = AUTO,  # noqa: A002 the name of the option
    rate: float = 1.0,
    time: float = 1.0,
    start_s: float = 0.0,
    duration_s: float | None = None,
    max_input_tokens: int | None = None,
    seed: int = 0,
    model: str | None = None,
) -> FileTrace:
    """A recorded trace, read as it is replayed: memory does not depend on its length.

    Args:
        path: A file, compressed with gzip or not. Request logs of several replicas may be given as a folder,
            a pattern or a sequence, and are merged by arrival.
        format: `azure`, `mooncake`, `plain` or `tideserve` (our request log); `auto` looks at the content.
        rate: A multiple of the requests over the same time: 2 has every request twice, the copy up to
            `JITTER_S` seconds away; 0.5 leaves out half of them at random.
        time: A multiple of the time between requests: 2 halves the rate of arrivals.
        start_s: Where to begin, in seconds of the trace as recorded. It becomes time 0.
        duration_s: How long to go on, in the same seconds; to the end if None.
        max_input_tokens: Longer prompts are cut to this.
        seed: Equal seeds give equal traces.
        model: The model whose requests to take from a request log of several.

    Raises:
        TraceError: with key, value and bound for an argument; with file and line for a line.
    """
    scaling = Scaling(rate, time, start_s, duration_s, max_input_tokens, seed)
    if format not in (AUTO, *FORMATS):
        raise TraceError(f"format = {shown(format)}: must be {AUTO} or one of {', '.join(FORMATS)}")
    named = trace_files(path)
    files = [file for file in named if file.has_lines()] or named[:1]
    layouts = [detect(file, format, model) for file in files]
    layout = layouts[0]
    if model is not None and not isinstance(layout, RequestLogFormat):
        raise TraceError(f"model = {shown(model)}: only a request log names the model of a request")
    for file, other in zip(files, layouts, strict=True):
        if len(files) > 1 and not isinstance(other, RequestLogFormat):
            raise TraceError(
                f"{file.path}: only request logs ({RequestLogFormat.name}) are read together, and this is "
                f"{other.name}"
            )
    torn = [file.left_out() for file in named if file not in files]
    return FileTrace(name_of(path), files, layout, scaling, torn)


def open_models(path: TracePath | Sequence[TracePath]) -> dict[str, ArrayTrace]:
    """The requests of each model in request logs, by model. The first request of all is at time 0.

    Raises TraceError for a file that is no request log, and for a wrong line.
    """
    files = [file for file in trace_files(path) if file.has_lines()]
    seen = RequestLogFormat("")  # leaves out every request, and sees its model
    for file in files:
        if not isinstance(detect(file, AUTO, ""), RequestLogFormat):
            raise TraceError(f"{file.path}: only a request log names the model of a request")
        for lines in file.blocks():
            read(lines, seen)
    found: dict[str, list[Chunk]] = {}
    for model in sorted(seen.models):
        layout = RequestLogFormat(model)
        layout.from_first = False
        with suppress(TraceError):  # all of its requests have failed
            found[model] = list(FileTrace(model, files, layout, Scaling(), ()).chunks())
    zero_s = min((float(chunks[0].arrival_s[0]) for chunks in found.values()), default=0.0)
    return {
        model: ArrayTrace(
            model,
            np.concatenate([chunk.arrival_s for chunk in chunks]) - zero_s,
            np.concatenate([chunk.input_tokens for chunk in chunks]),
            np.concatenate([chunk.output_tokens for chunk in chunks]),
        )
        for model, chunks in found.items()
    }


class FileTrace:
    """See `open_trace`."""

    def __init__(
        self, name: str, files: Sequence[LineFile], layout: Format, scaling: Scaling, torn: Sequence[str]
    ) -> None:
        self._name = name
        self._files = files
        self._layout = layout
        self._scaling = scaling
        self._other_files = torn
        self._bytes = sum(file.size for file in files)
        self._done = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def block_tokens(self) -> int:
        return self._layout.block_tokens

    def progress(self) -> float:
        """1 also where the end of the window is reached before that of the file."""
        if self._done:
            return 1.0
        return min(1.0, sum(file.read_bytes for file in self._files) / self._bytes)

    def left_out(self) -> list[str]:
        """A sentence for each file in which a crash has left torn lines, as far as it has been read."""
        return [*filter(None, (*self._other_files, *(file.left_out() for file in self._files)))]

    def chunks(self) -> Iterator[Chunk]:
        sources = self._sources()
        for file in self._files:
            file.read_bytes = 0
        self._done = False
        recorded_until_s: float | None = None

        def noted(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
            nonlocal recorded_until_s
            for chunk in chunks:
                recorded_until_s = float(chunk.arrival_s[-1])
                yield chunk

        left = False
        recorded = sources[0].chunks if len(sources) == 1 else merge(sources)
        for chunk in self._scaled(noted(from_zero(recorded) if self._layout.from_first else recorded)):
            left = True
            yield chunk
        self._done = True
        if not left:
            raise self._nothing(recorded_until_s)

    def _sources(self) -> list[Source]:
        layout, several = self._layout, len(self._files) > 1
        return [
            Source(
                layout.not_before_s(file) if several and isinstance(layout, RequestLogFormat) else -math.inf,
                in_order(_in_file_order(file, layout), layout.disorder_s, str(file.path)),
            )
            for file in self._files
        ]

    def _scaled(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        scaling = self._scaling
        if scaling.start_s or scaling.duration_s is not None:
            chunks = window(chunks, scaling.start_s, scaling.duration_s)
        if scaling.time != 1.0:
            chunks = stretch(chunks, scaling.time)
        if scaling.rate != 1.0:
            end_s = None if scaling.duration_s is None else scaling.duration_s * scaling.time
            chunks = at_rate(chunks, scaling.rate, end_s, scaling.seed, self._name)
        if scaling.max_input_tokens is not None:
            chunks = cap_inputs(chunks, scaling.max_input_tokens, self.block_tokens)
        return split(chunks, CHUNK_REQUESTS)

    def _nothing(self, recorded_until_s: float | None) -> TraceError:
        scaling = self._scaling
        if recorded_until_s is None:
            seen = sorted(self._layout.models) if isinstance(self._layout, RequestLogFormat) else []
            models = f" to replay; the models in it are {shown(', '.join(seen))}" if seen else ""
            return TraceError(f"{self._name}: has no requests{models}")
        if scaling.start_s or scaling.duration_s is not None:
            end = "its end" if scaling.duration_s is None else f"{scaling.duration_s:g} s later"
            return TraceError(
                f"{self._name}: no request from start_s = {scaling.start_s:g} to {end}, at rate = "
                f"{scaling.rate:g}; it was read up to {recorded_until_s:.12g} s"
            )
        return TraceError(f"{self._name}: rate = {scaling.rate:g} leaves no request")


def _in_file_order(file: LineFile, layout: Format) -> Iterator[Chunk]:
    """Chunks of requests in the order of their lines.

    Raises TraceError for a line that is wrong, or that stands later than the format's `disorder_s` allows.
    """
    newest = -math.inf
    for lines in file.blocks(skip=layout.header_lines):
        chunk, index = read(lines, layout)
        if not len(chunk):
            continue
        before = np.maximum(np.maximum.accumulate(chunk.arrival_s), newest)
        late_s = before - chunk.arrival_s
        if np.any(late_s > layout.disorder_s):
            at = int(np.argmax(late_s > layout.disorder_s))
            raise lines.error(
                int(index[at]),
                f"arrived {late_s[at]:.12g} s before a line above it, and {layout.disorder_s:g} s is the "
                "most that is put in order; sort the file by arrival",
            )
        newest = float(before[-1])
        yield chunk


def _within(key: str, value: float, above: float, most: float) -> None:
    if not above < value <= most or value == math.inf:
        raise TraceError(f"{key} = {value!r}: must be above {above:g} and at most {most:g}")
