import io

from replay.status_line import StatusLine


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
