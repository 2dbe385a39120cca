"""`tideserve batch` against a server that plays the endpoints of files and batches."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from serve_app.cli.batch_command import progress_line
from serve_app.cli.main import main
from tests.http_server import Answer, serving

FIRST = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"model": "m", "input": "x"}}


def batch(status: str, completed: int = 0, failed: int = 0, **more: Any) -> dict[str, Any]:
    counts = {"total": 4, "completed": completed, "failed": failed}
    return {
        "id": "batch_1",
        "status": status,
        "created_at": 1_800_000_000,
        "model": "tide",
        "output_file_id": None,
        "error_file_id": None,
        "errors": None,
        "request_counts": counts,
        **more,
    }


class Server:
    """Answers as told, and keeps what it was asked."""

    def __init__(self, *states: dict[str, Any]) -> None:
        self.states = list(states)
        self.asked: list[tuple[str, str, bytes]] = []
        self.files = {"file-out": b'{"custom_id":"a"}\n', "file-err": b'{"custom_id":"b"}\n'}

    def __call__(self, method: str, path: str, body: bytes) -> Answer:
        self.asked.append((method, path, body))
        if path == "/v1/files":
            return 200, {"id": "file-in"}
        if path.startswith("/v1/files/"):
            return 200, self.files[path.split("/")[3]]
        if path.startswith("/v1/batches?"):
            return 200, {"data": self.states}
        if path == "/v1/batches/nested":
            return 200, b"[" * 100_000, {"Content-Type": "application/json"}
        if path == "/v1/batches/gone":
            return 404, {"error": {"code": "batch_not_found", "message": "gone: does not exist"}}
        return 200, self.states.pop(0) if len(self.states) > 1 else self.states[0]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps(FIRST) + "\n")
    return path


def test_submit_uploads_the_file_and_creates_a_batch(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
    server, keys = Server(batch("validating")), []
    with serving(server, keys) as url:  # type: ignore[arg-type]
        status = main(
            ["batch", "submit", str(file), "--url", url, "--window", "3h", "--metadata", "team=search"]
        )

    assert (status, capsys.readouterr().out) == (0, "batch_1\n")
    upload, create = server.asked
    assert b'name="purpose"\r\n\r\nbatch\r\n' in upload[2]
    assert b'filename="in.jsonl"' in upload[2]
    assert file.read_bytes() in upload[2]
    assert json.loads(create[2]) == {
        "input_file_id": "file-in",
        "endpoint": "/v1/embeddings",
        "completion_window": "3h",
        "metadata": {"team": "search"},
    }
    assert keys == ["Bearer sk-mine"] * 2


@pytest.mark.parametrize(("last", "status"), [("completed", 0), ("expired", 1), ("cancelled", 1)])
def test_submit_waits_for_the_end(
    file: Path, capsys: pytest.CaptureFixture[str], last: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve_app.cli.batch_command._POLL_S", 0.01)
    server = Server(batch("validating"), batch("in_progress", 1), batch(last, 3, 1))
    with serving(server) as url:
        assert main(["batch", "submit", str(file), "--url", url, "--wait"]) == status

    told = capsys.readouterr()
    assert told.out == "batch_1\n"
    assert re.search(r"in_progress \[#{7}\.{23}\] 1 of 4 lines", told.err)
    assert told.err.endswith(f"batch_1: {last}; 3 of 4 lines, 1 failed\n")


@pytest.mark.parametrize(("answer", "status"), [(503, 0), (429, 0), (401, 1), (404, 1)])
def test_wait_ends_if_the_server_refuses_for_good(
    capsys: pytest.CaptureFixture[str], answer: int, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve_app.cli.batch_command._POLL_S", 0.01)
    states = iter([(200, batch("in_progress", 1)), (answer, {"error": {"message": "no"}})])

    def serve(*_: object) -> tuple[int, dict[str, Any]]:
        return next(states, (200, batch("completed", 4)))

    with serving(serve) as url:
        assert main(["batch", "wait", "batch_1", "--url", url]) == status

    assert f"answers {answer}" in capsys.readouterr().err


def test_a_failed_batch_names_its_faults(capsys: pytest.CaptureFixture[str]) -> None:
    faults = [{"line": 3, "message": "This line is no JSON.", "code": "invalid_json_line"}] * 7
    with serving(Server(batch("failed", errors={"data": faults}))) as url:
        assert main(["batch", "wait", "batch_1", "--url", url]) == 1

    told = capsys.readouterr().err
    assert told.count("line 3: This line is no JSON.") == 5
    assert "and 2 more" in told


def test_list_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(batch("in_progress", 2, 1), batch("completed", 4, id="batch_22"))
    with serving(server) as url:
        assert main(["batch", "ls", "--url", url, "--limit", "2"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["batch", "status", "done", "failed", "of", "created", "model"]
    assert lines[1].split()[:5] == ["batch_1", "in_progress", "2", "1", "4"]
    assert lines[2].split()[:5] == ["batch_22", "completed", "4", "0", "4"]
    assert server.asked[0][1] == "/v1/batches?limit=2"


def test_show_prints_the_batch_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Server(batch("in_progress", 2))) as url:
        assert main(["batch", "show", "batch_1", "--url", url]) == 0

    assert json.loads(capsys.readouterr().out) == batch("in_progress", 2)


def test_cancel_asks_for_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(batch("cancelling"))
    with serving(server) as url:
        assert main(["batch", "cancel", "batch_1", "--url", url]) == 0

    assert capsys.readouterr().out == "batch_1: cancelling\n"
    assert server.asked == [("POST", "/v1/batches/batch_1/cancel", b"")]


def test_fetch_prints_the_answers_and_saves_the_errors(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    ended = batch("completed", 3, 1, output_file_id="file-out", error_file_id="file-err")
    with serving(Server(ended)) as url:
        errors = tmp_path / "errors.jsonl"
        assert main(["batch", "fetch", "batch_1", "--url", url, "--errors", str(errors)]) == 0

    told = capsysbinary.readouterr()
    assert told.out == b'{"custom_id":"a"}\n'
    assert told.err == b"batch_1: completed; 3 of 4 lines, 1 failed\n"
    assert errors.read_bytes() == b'{"custom_id":"b"}\n'


def test_fetch_without_answers_leaves_no_old_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = output, errors = tmp_path / "output.jsonl", tmp_path / "errors.jsonl"
    for ended, written in (
        (batch("completed", 0, 4, error_file_id="file-err"), ["", '{"custom_id":"b"}\n']),
        (batch("completed", 4, output_file_id="file-out"), ['{"custom_id":"a"}\n', ""]),
    ):
        for path in paths:
            path.write_text("old\n")
        with serving(Server(ended)) as url:
            options = ["--url", url, "--output", str(output), "--errors", str(errors)]
            status = main(["batch", "fetch", "batch_1", *options])

        assert (status, [path.read_text() for path in paths]) == (0 if written[0] else 1, written)
        assert "batch_1: completed" in capsys.readouterr().err


def test_fetch_of_an_open_batch_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Server(batch("in_progress", 2))) as url:
        assert main(["batch", "fetch", "batch_1", "--url", url]) == 1

    assert "batch_1 is in_progress" in capsys.readouterr().err


def test_a_first_line_that_is_nested_deeply_is_told(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_bytes(b"[" * 60_000)

    assert main(["batch", "submit", str(file)]) == 1

    assert "no `url` found in the first line; give --endpoint" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "nested"], "no answer from http"),
        (["show", "gone"], "404 Not Found: batch_not_found: gone: does not exist"),
        (["ls", "--limit", "101"], "--limit = 101: must be from 1 to 100"),
        (["submit", "missing.jsonl"], "missing.jsonl: No such file or directory"),
        (["submit", __file__], "no `url` found in the first line; give --endpoint"),
        (["submit", __file__, "--window", "1d"], "--window = '1d': must be 1h to 168h"),
    ],
)
def test_mistakes_are_errors_in_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(Server(batch("in_progress"))) as url:
        assert main(["batch", *arguments, "--url", url]) == 1

    told = capsys.readouterr().err
    assert words in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://[::1", "http://host:99999", "host:8000"])
def test_a_url_that_is_none_is_named(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["batch", "ls"], ["explain"], ["usage"]):
        assert main([*command, "--url", url]) == 1

        assert f"--url = {url!r}: must be an http(s) URL" in capsys.readouterr().err


def test_a_url_with_a_password_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["batch", "ls", "--url", "http://me:secret@host"]) == 1

    told = capsys.readouterr().err
    assert "--url: must not contain a user name or password" in told
    assert "secret" not in told


def test_progress_has_the_rate_and_the_time_left() -> None:
    line = progress_line(batch("in_progress", 1, 1), 0.5)

    assert line == f"in_progress [{'#' * 15}{'.' * 15}] 2 of 4 lines, 1 failed, 0.5 lines/s, about 4 s left"


def test_progress_of_a_batch_in_validation_is_its_status() -> None:
    assert progress_line(
        {**batch("validating"), "request_counts": {"total": 0, "completed": 0, "failed": 0}}, 0
    ) == ("validating")
