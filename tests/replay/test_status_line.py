import io

from replay.run import replay
from replay.status_line import ProgressBar, StatusLine
from tests.replay.traffic import steady


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_status_line_is_rewritten_on_terminals_only() -> None:
    course = [("x", "9 s left"), ("x", "8 s left"), ("y", "7 s left")]
    screen, file = Terminal(), io.StringIO()
    for stream in (screen, file):
        status = StatusLine(stream)
        for text, figures in course:
            status.show(text, figures)
        status.end()

    assert screen.getvalue().count("\n") == 1
    assert screen.getvalue().endswith("\r\x1b[Ky; 7 s left\n")
    assert file.getvalue() == "x\ny\n"


def test_progress_bar_is_a_line_without_a_terminal() -> None:
    stream = io.StringIO()
    display = ProgressBar(stream)

    with display.running("static:1") as progress:
        progress(0.5)
        result = replay(steady(duration_s=60.0), policy="static:1")
    display.say_result(result, 1.25)

    assert stream.getvalue() == "static:1                   60 GPU-s, 100.00 % attained, in 1.2 s\n"


def test_on_a_terminal_a_bar_comes_and_goes() -> None:
    stream = Terminal()

    with ProgressBar(stream).running("a[b]") as progress:
        progress(0.25)

    assert "a[b]" in stream.getvalue()
    assert stream.getvalue().endswith("\x1b[2K")
