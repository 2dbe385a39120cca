import io
import os

import pytest

from serve_app.cli.terminal_output import LastingStream, Style, style_for


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_colours_unless_it_is_told_not_to() -> None:
    assert style_for(Terminal(), {}).on
    assert not style_for(Terminal(), {"NO_COLOR": "1"}).on
    assert not style_for(io.StringIO(), {}).on


@pytest.mark.parametrize("name", ["bold", "dim", "warn"])
def test_emphasis_applies_only_where_it_is_on(name: str) -> None:
    assert getattr(Style(on=False), name)("text") == "text"
    on = getattr(Style(on=True), name)("text")
    assert on.startswith("\x1b[")
    assert on.endswith("text\x1b[0m")
    assert getattr(Style(on=True), name)("") == ""


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
