"""A trace in memory."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from traces.chunks import in_arrival_order, part
from traces.trace import CHUNK_REQUESTS, Chunk, TraceError
from traces.values import LONGEST_S, MOST_TOKENS


class ArrayTrace:
    """Requests given as arrays, of one element a request.

    Args:
        name: For reports.
        arrival_s: Seconds since the start of the trace, in any order.
        input_tokens: Of each prompt.
        output_tokens: Of each answer. 0 counts as 1: its prefill makes a token.

    Raises:
        TraceError: if there are none, their numbers differ, or a value is out of bounds.
    """

    block_tokens = 0

    def __init__(
        self, name: str, arrival_s: npt.ArrayLike, input_tokens: npt.ArrayLike, output_tokens: npt.ArrayLike
    ) -> None:
        self._name = name
        columns = {
            "arrival_s": (np.asarray(arrival_s, dtype=np.float64), 0.0, LONGEST_S),
            "input_tokens": (np.asarray(input_tokens), 1, MOST_TOKENS),
            "output_tokens": (np.asarray(output_tokens), 0, MOST_TOKENS),
        }
        lengths = {key: column.shape for key, (column, _, _) in columns.items()}
        if any(len(shape) != 1 or shape != lengths["arrival_s"] for shape in lengths.values()):
            raise TraceError(f"{name}: must be three arrays of one length, and have {lengths}")
        if lengths["arrival_s"] == (0,):
            raise TraceError(f"{name}: has no requests")
        for key, (column, least, most) in columns.items():
            wrong = ~((column >= least) & (column <= most))
            if key != "arrival_s":
                wrong |= column != np.floor(column)
            if np.any(wrong):
                at = int(np.argmax(wrong))
                kind = "" if key == "arrival_s" else "a whole number "
                raise TraceError(
                    f"{name}: {key}[{at}] = {column[at]}: must be {kind}from {least:.12g} to {most:.12g}"
                )
        arrivals, inputs, outputs = (column for column, _, _ in columns.values())
        outputs = np.maximum(outputs, 1)
        chunk = Chunk(arrivals.astype(np.float64), inputs.astype(np.int64), outputs.astype(np.int64))
        self._requests = in_arrival_order(chunk)
        self._given = 0

    @property
    def name(self) -> str:
        """See `Trace`."""
        return self._name

    def chunks(self) -> Iterator[Chunk]:
        """See `Trace`."""
        for start in range(0, len(self._requests), CHUNK_REQUESTS):
            self._given = min(start + CHUNK_REQUESTS, len(self._requests))
            yield part(self._requests, start, self._given)

    def progress(self) -> float:
        """See `Trace`."""
        return self._given / len(self._requests)
