import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from serve_app import env
from serve_app.cli import CommandError, run
from serve_app.cli.config_file import read_config
from serve_app.cli.main import main
from serve_app.cli.progress import Progress
from serve_app.cli.ray_processes import Stopped
from serve_app.cli.run import ATTEMPTS, STABLE_S, Backoff
from serve_app.cli.server_log import GONE, ServerLog

CONFIG = Path(__file__).parents[2] / "config" / "serve.yaml"


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in {**env.FAST_PATH, **env.ALWAYS, **env.LOCAL, env.AUTH_TOKEN: "", env.AUTH_TOKEN_PATH: ""}:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(env.TEMPORARY_FOLDER, "/tmp/of-the-operator")


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may ignore it
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


ELSEWHERE = ("--address", "10.0.0.1:6379")
STARTS = -1
"""In place of an exit status: the command comes to the start of Ray."""


class StartedError(Exception):
    """The command came to the start of Ray."""


def start(*_: object) -> None:
    raise StartedError


@pytest.mark.parametrize(
    ("edit", "options", "status", "told"),
    [
        ("", ("--port", "8123"), STARTS, ""),
        ("", ("--port", "0"), 2, "--port = 0: must be a whole number from 1 to 65535"),
        ("", ("--port", "70000"), 2, "--port = 70000: must be a whole number from 1 to 65535"),
        ("applications: []", (), 2, "no application has import_path"),
        ("", ("--stop-with-parent", "1000000000"), 1, "the process did not start this command"),
        # A replica would find these after 24 s. Files of a cluster need not be on this machine.
        ("model: {tmp}/gone", (), 2, "models[0].model = '{tmp}/gone': no such folder on this machine"),
        ("model: {tmp}/gone", ELSEWHERE, STARTS, ""),
        ("http: {{api_keys_file: {tmp}/keys}}", (), 2, "http.api_keys_file = '{tmp}/keys': No such file"),
        ("http: {{api_keys_file: {tmp}/keys}}", ELSEWHERE, STARTS, ""),
    ],
)
@pytest.mark.usefixtures("handlers")
def test_bad_options_and_files_are_refused_before_ray_starts(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    edit: str,
    options: tuple[str, ...],
    status: int,
    told: str,
) -> None:
    monkeypatch.setenv(env.AUTH_TOKEN, "a-token")
    monkeypatch.setattr(run, "port_taken", lambda port: False)
    monkeypatch.setattr(run, "adopt_orphans", start)
    document = yaml.safe_load(CONFIG.read_text())
    given = yaml.safe_load(edit.format(tmp=tmp_path)) or {}
    document |= {key: value for key, value in given.items() if key == "applications"}
    for app in document["applications"]:
        app["args"] |= {key: value for key, value in given.items() if key == "http"}
        app["args"]["models"][0] |= {key: value for key, value in given.items() if key == "model"}
    path = tmp_path / "serve.yaml"
    path.write_text(yaml.safe_dump(document))
    command = ["run", str(path), *options]

    if status == STARTS:
        with pytest.raises(StartedError):
            main(command)
    else:
        assert main(command) == status
        assert told.format(tmp=tmp_path) in capsys.readouterr().err


@pytest.mark.parametrize(("config", "asked"), [("serve.gpu.yaml", True), ("serve.yaml", False)])
@pytest.mark.usefixtures("handlers")
def test_machine_without_a_gpu_serves_models_on_cpus_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], config: str, asked: bool
) -> None:
    monkeypatch.setenv(env.AUTH_TOKEN, "a-token")
    monkeypatch.setattr(run, "port_taken", lambda port: False)
    monkeypatch.setattr(run, "adopt_orphans", start)
    monkeypatch.setattr("serve_app.cli.gpu_machine.read_driver", lambda: None)
    command = ["run", str(CONFIG.with_name(config))]

    if not asked:
        with pytest.raises(StartedError):
            main(command)
        assert "driver" not in capsys.readouterr().err
        return
    assert main(command) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "tideserve: this machine cannot serve on GPUs yet:"
    assert any("no NVIDIA driver answers" in line for line in lines[1:])


def test_a_taken_port_is_refused_before_ray_starts(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("", 0)) as listener:
        port = listener.getsockname()[1]
        assert main(["run", str(CONFIG), "--port", str(port)]) == 1

    assert f"port {port} is taken" in capsys.readouterr().err


@pytest.mark.parametrize("elsewhere", [(), ELSEWHERE], ids=["here", "elsewhere"])
def test_tls_files_are_checked_before_ray_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], elsewhere: tuple[str, ...]
) -> None:
    """Ray's GCS crashes without them, and `serve run` waits for it."""
    monkeypatch.setenv("RAY_USE_TLS", "1")
    monkeypatch.setattr(run, "port_taken", lambda port: False)
    monkeypatch.setattr(run, "adopt_orphans", start)

    if elsewhere:
        with pytest.raises(StartedError):
            main(["run", str(CONFIG), *elsewhere])
    else:
        assert main(["run", str(CONFIG)]) == 1
        assert "RAY_TLS_SERVER_CERT = '': no such file; RAY_USE_TLS is set" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("nohup", [False, True])
def test_signals_stop_it_unless_nohup_ignores_a_hang_up(
    handlers: None, number: signal.Signals, nohup: bool
) -> None:
    if nohup:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stopping = run.Stopping()
    stopping.listen()
    assert not stopping
    signal.raise_signal(number)
    assert bool(stopping) == (not nohup or number != signal.SIGHUP)


STOPPED = -1.0


class Runs:
    """Plays the server: each start ends after so many seconds ready, None for never, or is stopped."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *ends: float | None) -> None:
        self.started: list[run.Start] = []
        self.delays: list[float] = []
        self._ends = iter(ends)
        monkeypatch.setattr(run, "serve", self._serve)
        monkeypatch.setattr(run.Stopping, "within", self._wait)
        monkeypatch.setattr(run, "port_taken", lambda port: False)
        monkeypatch.setattr(run, "adopt_orphans", lambda: None)
        monkeypatch.setenv(env.AUTH_TOKEN, "a-token")
        self.told_to_stop = False

    def _serve(self, start: run.Start, stopping: run.Stopping) -> float | None:
        self.started.append(start)
        ready_s = next(self._ends)
        stopping.signalled = ready_s == STOPPED
        return ready_s

    def _wait(self, seconds: float) -> bool:
        self.delays.append(seconds)
        return self.told_to_stop


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "serve.yaml"
    path.write_text(CONFIG.read_text())
    return path


@pytest.mark.parametrize(
    ("ends", "options", "status", "delays", "told"),
    [
        ([60.0], [], 1, [], ""),
        ([STOPPED], ["--restart"], 0, [], ""),
        ([60.0, None, 60.0, STOPPED], ["--restart"], 0, [1, 2, 4], "restarts in 4 s and then reads {} again"),
        ([None], ["--restart"], 1, [], "not restarted: the server never became ready"),
        ([60.0], ["--restart"], 0, [1], "restarts in 1 s"),
    ],
    ids=["died", "stopped", "started again later each time", "never ready", "stopped while it waits"],
)
@pytest.mark.usefixtures("handlers")
def test_what_follows_the_end_of_a_server(
    monkeypatch: pytest.MonkeyPatch,
    config: Path,
    capsys: pytest.CaptureFixture[str],
    ends: list[float | None],
    options: list[str],
    status: int,
    delays: list[float],
    told: str,
) -> None:
    runs = Runs(monkeypatch, *ends)
    runs.told_to_stop = len(ends) == len(delays)

    assert main(["run", str(config), *options]) == status

    assert (len(runs.started), runs.delays) == (len(ends), delays)
    assert told.format(config) in capsys.readouterr().out


@pytest.mark.usefixtures("handlers")
def test_the_file_is_read_anew_and_must_be_valid(
    monkeypatch: pytest.MonkeyPatch, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = Runs(monkeypatch, 60.0, 60.0)
    first = config.read_text()

    def edit(stopping: run.Stopping, seconds: float) -> bool:
        config.write_text("applications: []" if len(runs.started) == 2 else first.replace("8000", "8001"))
        return False

    monkeypatch.setattr(run.Stopping, "within", edit)

    assert main(["run", str(config), "--restart", "--verbose"]) == 2

    assert [(start.port, start.verbose) for start in runs.started] == [(8000, True), (8001, True)]
    assert "no application has import_path" in capsys.readouterr().err


@pytest.mark.parametrize(("options", "host"), [((), "127.0.0.1"), (("--host", "0.0.0.0"), "0.0.0.0")])
@pytest.mark.usefixtures("handlers")
def test_listens_on_given_host_or_loopback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, config: Path, options: tuple[str, ...], host: str
) -> None:
    document = yaml.safe_load(config.read_text())
    del document["http_options"]["host"]
    config.write_text(yaml.safe_dump(document))
    runs = Runs(monkeypatch, STOPPED)
    given = []

    def popen(command: list[str], **_: object) -> None:
        given.append(yaml.safe_load(Path(command[4]).read_text()))

    monkeypatch.setattr(run.subprocess, "Popen", popen)

    assert main(["run", str(config), *options]) == 0
    folder = tmp_path / "folder"
    folder.mkdir()
    with closing(ServerLog(tmp_path)) as log:
        run.start_driver(runs.started[0], folder, log)

    assert given[0]["http_options"] == {"host": host, "port": 8000}


class Driver:
    """Runs a program in place of Serve's driver, which ends at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, config: Path, logs: Path) -> None:
        self.config, self.logs, self.stopping = config, logs, run.Stopping()
        self.waits = True
        self.process: subprocess.Popen[bytes] | None = None
        monkeypatch.setattr(run, "start_driver", self._start)
        monkeypatch.setattr(run, "stop_descendants", lambda grace_s: Stopped())

    def serve(self, code: str, *, verbose: bool = False) -> float | None:
        self.code = code
        values = {env.TEMPORARY_FOLDER: str(self.logs)}
        start = run.Start(read_config(self.config), "127.0.0.1", 8000, values, "local", verbose)
        return run.serve(start, self.stopping)

    def _start(self, start: run.Start, folder: Path, log: ServerLog) -> subprocess.Popen[bytes]:
        with log.writer() as output:
            self.process = subprocess.Popen([sys.executable, "-c", self.code], stdout=output, stderr=output)
        if self.waits:
            self.process.wait()
        return self.process


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, config: Path, tmp_path: Path) -> Iterator[Driver]:
    made = Driver(monkeypatch, config, tmp_path / "logs")
    yield made
    if made.process is not None:
        made.process.kill()
        made.process.wait()


def test_unkillable_process_is_a_named_failure(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    left = Stopped((), ("process 7 (VLLM::EngineCore), in state D",))
    monkeypatch.setattr(run, "stop_descendants", lambda grace_s: left)

    with pytest.raises(CommandError, match=r"left after SIGKILL: process 7 \(VLLM::EngineCore\), in state D"):
        driver.serve("")


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("raise SystemExit('no memory')", "ended with status 1"),
        ("import os; print('no memory', flush=True); os.kill(os.getpid(), 9)", "was killed by signal 9"),
    ],
)
def test_end_of_serve_run_shows_its_last_lines(
    driver: Driver, capsys: pytest.CaptureFixture[str], code: str, told: str
) -> None:
    assert driver.serve(code) is None

    [log] = driver.logs.iterdir()
    assert log.read_text() == "no memory\n"
    assert capsys.readouterr().out.splitlines()[:3] == [
        f"tideserve: Serve's driver (`serve run`, process {driver.process.pid}) {told}",
        f"tideserve: the last lines of {log}:",
        "    no memory",
    ]


SAID = "import sys; print('from vLLM'); print('tideserve: Serve is gone'); sys.exit({status})"


def test_only_lines_for_the_user_are_printed_once(driver: Driver, capsys: pytest.CaptureFixture[str]) -> None:
    driver.serve(SAID.format(status=GONE))

    out = capsys.readouterr().out
    assert re.search(r"^tideserve: +\d+\.\d s  Serve is gone$", out, re.MULTILINE)
    assert "from vLLM" not in out
    assert "last lines" not in out


def test_temporary_log_is_removed_at_a_clean_end(driver: Driver) -> None:
    driver.stopping.signalled = True

    driver.serve("print('from vLLM')")

    assert list(driver.logs.iterdir()) == []


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("ValueError: no memory", ["the last lines of {log}:", "ValueError: no memory"]),
        ("INFO worker.py -- StartedError", ["the log: {log}"]),
    ],
)
def test_failed_model_shows_errors_in_log(
    driver: Driver,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    written: str,
    told: list[str],
) -> None:
    log: list[Path] = []

    def step(self: object) -> bool:
        log[:] = driver.logs.iterdir()
        log[0].write_text(f"{written}\n")
        driver.stopping.signalled = True
        return True

    monkeypatch.setattr(Progress, "step", step)
    driver.waits = False

    driver.serve("import time; time.sleep(600)")

    out = capsys.readouterr().out.splitlines()
    assert [line.removeprefix("tideserve: ").strip() for line in out[: len(told)]] == [
        line.format(log=log[0]) for line in told
    ]


def test_verbose_prints_everything(driver: Driver, capsys: pytest.CaptureFixture[str]) -> None:
    driver.serve(SAID.format(status=GONE), verbose=True)

    assert "\nfrom vLLM\n" in "\n" + capsys.readouterr().out


@pytest.mark.parametrize(
    ("ready_s", "delays"),
    [
        ([10.0] * 8, [1, 2, 4, 8, 16, 32, 60, 60]),
        ([10.0] * 3 + [STABLE_S, 10.0], [1, 2, 4, 1, 2]),
        ([None], [None]),
        ([10.0] + [None] * ATTEMPTS, [1, 2, 4, 8, 16, None]),
        ([10.0] + [None] * (ATTEMPTS - 1) + [1.0] + [None] * (ATTEMPTS - 1), [1, 2, 4, 8, 16, 32, *[60] * 4]),
    ],
    ids=["doubled", "anew once stable", "never ready", "five failures in a row", "a start between failures"],
)
def test_the_delay_before_the_next_start(ready_s: list[float | None], delays: list[float | None]) -> None:
    backoff = Backoff()

    assert [backoff.after(each) for each in ready_s] == delays
