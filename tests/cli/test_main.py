import pytest

from serve_app import __version__
from serve_app.cli.main import main


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["fly"],
        ["check"],
        ["run"],
        ["run", "x", "--proxy", "nginx"],
        ["knobs", "turn"],
        ["knobs", "set"],
        ["explain", "--limit", "few"],
    ],
)
def test_invalid_command_line_is_a_usage_error(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_status:
        main(argv)

    assert exit_status.value.code == 2
    assert "usage: tideserve" in capsys.readouterr().err


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_status:
        main(["--version"])

    assert exit_status.value.code == 0
    assert capsys.readouterr().out == f"tideserve {__version__}\n"
