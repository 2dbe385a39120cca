from collections.abc import Iterator
from pathlib import Path

import pytest

from serve_app.cli import server_log
from serve_app.cli.server_log import ServerLog


@pytest.fixture
def log(tmp_path: Path) -> Iterator[ServerLog]:
    made = ServerLog(tmp_path)
    yield made
    made.close()


def write(log: ServerLog, text: str) -> None:
    with log.writer() as file:
        file.write(text.encode())


def test_only_whole_lines_for_the_user_are_returned(log: ServerLog) -> None:
    write(log, "INFO vllm\ntideserve: Serve has ")
    assert list(log.look()) == []

    write(log, "started\nINFO ray\n")
    assert list(log.look()) == ["tideserve: Serve has started"]
    assert list(log.look()) == []


def test_what_haproxys_supervisor_says_is_for_the_user_too(log: ServerLog) -> None:
    write(log, "\x1b[36m(HAProxyManager pid=7)\x1b[0m tideserve: HAProxy ended with status 1\n")

    assert list(log.look()) == ["tideserve: HAProxy ended with status 1"]


def test_deleted_log_folder_does_not_end_server(log: ServerLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_log, "_MAX_BYTES", 1)
    write(log, "an ERROR\n")
    log.path.unlink()

    assert list(log.look()) == []
    assert log.tail() == ["an ERROR"]


def test_verbose_returns_every_line(tmp_path: Path) -> None:
    log = ServerLog(tmp_path, verbose=True)
    write(log, "INFO vllm\n\xff\n")

    assert list(log.look()) == ["INFO vllm", "\xff"]
    log.close()


def test_a_machine_without_memory_or_disk_is_a_warning_once(log: ServerLog) -> None:
    memory = "(raylet) 1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 workers crashed\n"
    disk = "(raylet) file_system_monitor.cc:116: /tmp/ray is over 95% full, available space: 1 GB\n"
    write(log, memory + disk + memory + disk)

    assert list(log.look()) == [memory.strip(), disk.strip()]


def test_it_moves_to_rays_logs_while_it_is_written(log: ServerLog, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    with log.writer() as file:
        file.write(b"tideserve: before\n")
        assert log.move_to(folder)
        assert not log.move_to(folder)
        file.write(b"tideserve: after\n")

    assert log.path == folder / "tideserve.log"
    assert list(log.look()) == ["tideserve: before", "tideserve: after"]
    assert log.path.stat().st_mode & 0o777 == 0o600


def test_it_stays_where_it_is_if_it_cannot_be_moved(log: ServerLog, tmp_path: Path) -> None:
    assert not log.move_to(tmp_path / "nowhere")

    assert log.path.parent == tmp_path


def test_the_end_is_what_tells_of_errors_without_colours(log: ServerLog) -> None:
    write(
        log,
        "\x1b[36m(ServeReplica pid=1)\x1b[0m (EngineCore pid=2) ERROR 11-22 [core.py:1] no memory\n"
        "(ServeReplica pid=1) ValueError: max_model_len is too large\n"
        "INFO worker.py:2029 -- Started\nSUCC deployed, with no errors\n",
    )

    assert log.tail() == log.errors()
    assert log.errors() == [
        "(ServeReplica pid=1) (EngineCore pid=2) ERROR 11-22 [core.py:1] no memory",
        "(ServeReplica pid=1) ValueError: max_model_len is too large",
    ]


def test_without_an_error_the_end_is_the_last_lines(log: ServerLog) -> None:
    write(log, "".join(f"line {number}\n\n" for number in range(100)))

    assert log.tail() == [f"line {number}" for number in range(88, 100)]
    assert log.errors() == []


def test_a_file_that_grows_too_large_is_begun_anew(log: ServerLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """An access log line a request would fill the disk."""
    monkeypatch.setattr(server_log, "_MAX_BYTES", 100)
    with log.writer() as file:
        file.write(b"x" * 200 + b"\n")
        file.flush()
        assert list(log.look()) == []
        file.write(b"tideserve: after\n")

    assert list(log.look()) == ["tideserve: after"]
    assert log.path.read_text() == "tideserve: after\n"
    copy = log.path.with_name(f"{log.path.name}.1").stat()
    assert (copy.st_size, copy.st_mode & 0o777) == (201, 0o600)

    log.remove()
    assert list(log.path.parent.iterdir()) == []
