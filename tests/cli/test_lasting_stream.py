"""Output that nobody reads any more."""

from __future__ import annotations

import os

from serve_app.cli.lasting_stream import LastingStream


def test_a_reader_that_goes_away_ends_nothing() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as reader, os.fdopen(writing, "w", buffering=1) as stream:
        lasting = LastingStream(stream)
        lasting.write("seen\n")
        assert reader.readline() == "seen\n"
        reader.close()
        lasting.write("unseen\n")
        lasting.flush()
        assert (lasting.isatty(), lasting.encoding) == (False, stream.encoding)
