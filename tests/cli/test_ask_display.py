import io

from serve_app.cli.ask_display import Display, Piece, Wait
from tests.timing import Clock


class Stream(io.TextIOWrapper):
    """A file, or what says that it is a terminal."""

    def __init__(self, terminal: bool = False, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(), encoding=encoding, write_through=True)
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    @property
    def written(self) -> str:
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode(self.encoding)


def test_without_terminal_each_phase_is_a_line() -> None:
    out, err = Stream(), Stream()
    display = Display(out, err, Clock(50.0))

    display.begin("tide")
    display.tick()
    display.show_wait(Wait("imports", None, 5))
    display.show_wait(Wait("imports", None, 10))
    display.show_wait(Wait("warm_up", 2, 15))
    display.write_piece(Piece("Once"))
    display.write_piece(Piece(" upon"))
    display.end()
    display.write_line("tide: 2 tokens")

    assert out.written == "Once upon\n"
    assert err.written == (
        "asking tide\n"
        "waiting for a replica: imports, 5 s so far\n"
        "waiting for a replica: warm_up, about 2 s to go, 15 s so far\n"
        "tide: 2 tokens\n"
    )


def test_on_terminal_the_wait_is_one_rewritten_line() -> None:
    out, err, clock = Stream(terminal=True), Stream(terminal=True), Clock(50.0)
    display = Display(out, err, clock)

    display.begin("tide")
    clock.now += 4
    display.tick()
    display.show_wait(Wait("imports", 3, 5))
    clock.now += 2
    display.tick()
    clock.now += 1
    display.tick()
    display.write_piece(Piece("Once"))
    display.tick()

    assert err.written.split("\r\x1b[K")[1:] == [
        "waiting for the first token, 0 s",
        "waiting for the first token, 4 s",
        "waiting for a replica: imports, about 3 s to go, 5 s so far",
        "waiting for a replica: imports, about 1 s to go, 7 s so far",
        "waiting for a replica: imports, any moment now, 8 s so far",
        "",
    ]
    assert out.written == "Once"


def test_reasoning_is_set_apart_and_dim_on_a_terminal() -> None:
    plain, terminal = Stream(), Stream(terminal=True)
    for stream in (plain, terminal):
        display = Display(stream, Stream())
        display.write_piece(Piece("hm", reasoning=True))
        display.write_piece(Piece("yes\n"))
        display.end()

    assert plain.written == "hm\n\nyes\n"
    assert terminal.written == "\x1b[2mhm\x1b[0m\n\nyes\n"


def test_nothing_that_comes_over_the_network_steers_a_terminal() -> None:
    out, err = Stream(terminal=True), Stream(terminal=True)
    display = Display(out, err, Clock(50.0))

    display.show_wait(Wait("\x1b]0;boo\x07", None, 5))
    display.begin("tide")
    display.tick()
    display.write_piece(Piece("a\tb\n\x1b[2Jc\x9b1m\r"))
    display.write_line("\x1b[31mred")

    assert out.written == "a\tb\n[2Jc1m"
    assert "\x1b]0" not in err.written
    assert err.written.endswith("\N{REPLACEMENT CHARACTER}[31mred\n")


def test_what_a_stream_cannot_encode_is_replaced() -> None:
    out, ascii_only = Stream(), Stream(encoding="ascii")
    for stream in (out, ascii_only):
        Display(stream, Stream()).write_piece(Piece("é\ud800"))

    assert (out.written, ascii_only.written) == ("é?", "??")


def test_without_answer_stream_only_progress_is_written() -> None:
    err = Stream()
    display = Display(None, err, Clock(50.0))

    display.begin("tide")
    display.write_piece(Piece("Once"))
    display.end()

    assert err.written == "asking tide\n"
