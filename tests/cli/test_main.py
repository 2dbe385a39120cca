import socket
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("ask", "tideserve: no server answers at {}: "),
        ("batch ls", "tideserve: no answer from {}: "),
        ("canary tide abort", "tideserve: nothing answers at {}: "),
        ("explain", "tideserve: nothing answers at {}: "),
        ("usage", "tideserve: nothing answers at {}: "),
    ],
)
def test_an_absent_server_is_named(words: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"

    assert main([*words.split(), "--url", url]) == 1
    err = capsys.readouterr().err
    assert err.startswith(told.format(url))
    assert ("Connect" in err, err.count("\n")) == (True, 1)


_CONFIG = Path(__file__).parents[2] / "config/serve.yaml"


@pytest.mark.parametrize(
    ("words", "buffered"),
    [(["check", str(_CONFIG), "--show"], False), (["--help"], True), (["check", "absent.yaml"], False)],
)
def test_a_reader_that_leaves_ends_a_command_quietly(words: list[str], buffered: bool) -> None:
    code = "import sys; from serve_app.cli.main import main; sys.exit(main())"
    command = [sys.executable, *([] if buffered else ["-u"]), "-c", code, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        said = process.stderr.read()

    if words[-1] == "absent.yaml":
        assert (process.returncode, said.splitlines()[0]) == (2, "tideserve: invalid settings:")
    else:  # argparse itself ignores the failure, and ends with 0
        assert (process.returncode, said) == (0 if "--help" in words else 141, "")


def test_a_broken_connection_is_not_taken_for_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose_the_server(path: Path, cpus: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("serve_app.cli.check.read_config", lose_the_server)
    with pytest.raises(BrokenPipeError):
        main(["check", "serve.yaml"])
