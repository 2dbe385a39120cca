"""`tideserve-python` is Python, forked from a zygote where there is one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from serve_app import env
from serve_app.zygote import python as command
from serve_app.zygote.numa import memory_policy, set_memory_policy
from serve_app.zygote.request import OOM_SCORE
from tests.zygote.conftest import MARK, Start

FORKED = f"import sys; print({MARK!r} in sys.modules)"
WAITS = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()"

needs_zygote = pytest.mark.usefixtures("shared_zygote")


def said(process: subprocess.Popen[str], given: str = "") -> str:
    return process.communicate(given, timeout=60)[0].strip()


@needs_zygote
def test_the_process_is_a_fork_of_the_zygote(python: Start) -> None:
    assert said(python("-c", FORKED)) == "True"


def test_without_a_zygote_it_is_plain_python(python: Start) -> None:
    assert said(python("-c", FORKED)) == "False"


@needs_zygote
def test_fork_has_command_line_environment_folder_and_streams(python: Start, tmp_path: Path) -> None:
    code = "import os, sys; print(sys.argv, os.environ['GIVEN'], os.getcwd(), sys.stdin.read())"
    process = python("-u", "-W", "ignore", "-c", code, "a", "-b", cwd=tmp_path)
    assert said(process, "text") == f"['-c', 'a', '-b'] to the fork {tmp_path} text"


@needs_zygote
def test_it_has_the_niceness_of_the_process_that_asked(python: Start) -> None:
    nice = min(19, os.getpriority(os.PRIO_PROCESS, 0) + 3)  # 19 is the lowest priority
    asking = python(
        "-c",
        "import os, sys; print(os.getpriority(os.PRIO_PROCESS, 0), 'colorsys' in sys.modules)",
        preexec_fn=lambda: os.nice(3),
    )
    assert asking.communicate(timeout=60)[0].split() == [str(nice), "True"]


@needs_zygote
def test_fork_has_cpus_and_memory_policy_of_its_asker(python: Start) -> None:
    cpu = max(os.sched_getaffinity(0))
    before = memory_policy()
    if not before:
        pytest.skip("this kernel tells no memory policy")
    preferred = [1, 1, *before[2:]]  # MPOL_PREFERRED, node 0

    def bind() -> None:  # as `numactl --physcpubind --preferred` does
        os.sched_setaffinity(0, {cpu})
        set_memory_policy(preferred)

    tell = "import os; from serve_app.zygote.numa import memory_policy\n"
    tell += f"import sys; print({MARK!r} in sys.modules, os.sched_getaffinity(0), memory_policy())"
    assert said(python("-c", tell, preexec_fn=bind)) == f"True {{{cpu}}} {preferred}"
    assert said(python("-c", tell)) == f"True {os.sched_getaffinity(0)} {before}"


@needs_zygote
def test_fork_is_killed_as_early_as_its_asker_when_memory_runs_out(python: Start) -> None:
    own = Path(OOM_SCORE)
    score = min(1000, int(own.read_text()) + 300)  # anybody may raise it
    tell = f"import sys; print({MARK!r} in sys.modules, open({OOM_SCORE!r}).read())"
    process = python("-c", tell, preexec_fn=lambda: own.write_text(str(score)))
    assert said(process).split() == ["True", str(score)]


@needs_zygote
def test_processes_of_a_forked_engine_core_are_forks_too(python: Start, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import multiprocessing, sys\n"
        "from serve_app import env\n"
        "def start(deeper, answers):\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    process = context.Process(target=deeper[0], args=(deeper[1:], answers))\n"
        "    process.start()\n"
        "    process.join()\n"
        f"def tell(_, answers): answers.put({MARK!r} in sys.modules)\n"
        "if __name__ == '__main__':\n"
        "    multiprocessing.set_executable(env.PYTHON)\n"  # as an engine replica does
        "    answers = multiprocessing.get_context('spawn').SimpleQueue()\n"
        "    start([start, tell], answers)\n"
        "    print(answers.get())\n"
    )
    assert said(python(str(program))) == "True"


def test_it_runs_files_and_modules_as_main(python: Start, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text("import beside, sys; print(__name__, __file__, sys.argv[1:], beside.VALUE)")
    (tmp_path / "beside.py").write_text("VALUE = 7")
    assert said(python(str(file), "x")) == f"__main__ {file} ['x'] 7"
    assert said(python("-m", "this")).startswith("The Zen of Python")


@needs_zygote
def test_other_descriptors_keep_their_numbers(python: Start, tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+") as file:
        number = file.fileno()
        said(python("-c", f"import os; os.write({number}, b'written')", pass_fds=[number]))
        file.seek(0)
        assert file.read() == "written"


@needs_zygote
@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("pass", 0),
        ("import sys; sys.exit(3)", 3),
        ("raise SystemExit('stopped')", 1),
        ("raise ValueError", 1),
        ("import os; os._exit(200)", 200),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    ],
)
def test_it_ends_as_the_process_ends(python: Start, code: str, status: int) -> None:
    process = python("-c", code)
    said(process)
    assert process.returncode == status


@needs_zygote
def test_fork_waits_for_threads_and_runs_exit_functions(python: Start) -> None:
    code = """
import atexit, threading, time
atexit.register(print, "exit function")
threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
print("main", end=" ")
"""
    assert said(python("-c", code)) == "main thread\nexit function"


@needs_zygote
def test_a_signal_reaches_the_process(python: Start) -> None:
    blocked = "import os, signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])"
    process = python("-c", f"{blocked}; print(flush=True); signal.sigwait([signal.SIGTERM]); os._exit(9)")
    assert process.stdout is not None
    process.stdout.readline()
    process.terminate()
    assert process.wait(60) == 9


@needs_zygote
def test_the_process_ends_with_it(python: Start) -> None:
    process = python("-c", WAITS)
    assert process.stdout is not None
    fork = psutil.Process(int(process.stdout.readline()))
    process.kill()
    assert psutil.wait_procs([fork], timeout=60)[1] == []


@needs_zygote
def test_the_process_ends_with_the_parent_of_it(python: Start) -> None:
    nested = [sys.executable, "-m", command.__name__, "-c", WAITS]
    process = python("-c", f"import subprocess; subprocess.run({nested!r})")
    assert process.stdout is not None
    fork = psutil.Process(int(process.stdout.readline()))
    process.kill()
    assert psutil.wait_procs([fork], timeout=60)[1] == []


def test_the_process_outlives_the_zygote(zygote: subprocess.Popen[bytes], python: Start) -> None:
    process = python("-c", f"{WAITS}; print('done')")
    assert process.stdout is not None
    process.stdout.readline()
    zygote.kill()
    zygote.wait(60)
    assert said(process, "go on") == "done"


@needs_zygote
def test_fork_knows_its_request_time_and_zygotes_ready_time(python: Start) -> None:
    names = (env.ZYGOTE_READY_AT, env.PROCESS_ASKED_AT)
    ready_at, asked_at = map(
        float, said(python("-c", f"import os; print(*map(os.environ.get, {names}))")).split()
    )

    assert ready_at <= asked_at <= time.time()


def test_a_process_that_nothing_forked_knows_no_zygote(python: Start) -> None:
    assert said(python("-c", f"import os; print({env.ZYGOTE_READY_AT!r} in os.environ)")) == "False"


def test_workers_that_start_at_once_start_one_zygote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sockets").mkdir()
    (tmp_path / "logs").mkdir()
    program = "import serve_app.zygote.python as it, sys; it._IMPORTED = (sys.argv.pop(1),); it.main()"
    raylet = f"--raylet-name={tmp_path}/sockets/raylet"
    report = f"import os, sys; print(os.getppid(), {MARK!r} in sys.modules)"
    environment = {**os.environ, env.ZYGOTE: "abc", env.RAY_JOB: "01"}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", program, MARK, "-c", report, raylet],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    answers = {said(worker) for worker in workers}
    zygote = int(answers.pop().split()[0])
    assert answers == set()
    psutil.Process(zygote).kill()
    assert (tmp_path / "logs" / "zygote-abc-01.log").read_bytes() == b""


def test_workers_take_over_the_zygote_that_was_started_before_ray(tmp_path: Path) -> None:
    (tmp_path / "sockets").mkdir()
    early = command.early_socket(str(tmp_path), "abc")
    with subprocess.Popen(
        [sys.executable, "-m", "serve_app.zygote.zygote", early, str(os.getpid()), "--", MARK]
    ) as zygote:
        while not os.path.exists(early):
            time.sleep(0.01)
        report = f"import os, sys; print(os.getppid(), {MARK!r} in sys.modules)"
        arguments = ["-m", command.__name__, "-c", report, f"--raylet-name={tmp_path}/sockets/raylet"]
        given = {**os.environ, env.ZYGOTE: "abc", env.RAY_JOB: "01", env.EARLY_ZYGOTES: str(tmp_path)}
        for _ in range(2):
            worker = subprocess.Popen(
                [sys.executable, *arguments], env=given, stdout=subprocess.PIPE, text=True
            )
            assert said(worker) == f"{zygote.pid} True"
        assert (tmp_path / "sockets" / "zygote-abc-01").exists()
        zygote.kill()


def test_workers_child_restarts_a_dead_zygote(tmp_path: Path) -> None:
    path = tmp_path / "zygote-abc-01"
    given = {env.ZYGOTE: "abc", env.RAY_JOB: "01", env.RAYLET: str(os.getpid()), env.ZYGOTE_SOCKET: str(path)}
    program = "import serve_app.zygote.python as it, sys; it._IMPORTED = (sys.argv.pop(1),); it.main()"
    report = f"import os, sys; print(os.getppid(), {MARK!r} in sys.modules)"
    core = subprocess.Popen(
        [sys.executable, "-c", program, MARK, "-c", report],
        env={**os.environ, **given},
        stdout=subprocess.PIPE,
        text=True,
    )
    zygote, forked = said(core).split()
    assert forked == "True"
    psutil.Process(int(zygote)).kill()


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("order", [(), ("--",)], ids=["at once", "with the first request"])
def test_zygote_that_refuses_to_fork_is_not_tried_for_an_hour(
    tmp_path: Path, early: bool, order: tuple[str, ...]
) -> None:
    (tmp_path / "sockets").mkdir()
    (tmp_path / "threaded.py").write_text(
        "import threading, time\nprint('imported', file=open(__file__ + '.log', 'a'))\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    search = os.pathsep.join([str(tmp_path), *sys.path])
    given = {**os.environ, "PYTHONPATH": search, env.ZYGOTE: "abc", env.RAY_JOB: "01"}
    modules = (*order, "threaded")
    if early:
        given[env.EARLY_ZYGOTES] = str(tmp_path)
        path = command.early_socket(str(tmp_path), "abc")
        zygote = command.start_zygote(path, os.getpid(), given, subprocess.DEVNULL, modules)
        while not os.path.exists(path):
            time.sleep(0.01)
        if not order:
            zygote.wait(60)
    program = f"import serve_app.zygote.python as it; it._IMPORTED = {modules!r}; it.main()"
    report = f"import sys; print({MARK!r} in sys.modules)"

    def error_of_a_worker() -> str:
        worker = subprocess.Popen(
            [sys.executable, "-c", program, "-c", report, f"--raylet-name={tmp_path}/sockets/raylet"],
            cwd=tmp_path,
            env=given,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        answer, error = worker.communicate(timeout=60)
        assert answer.strip() == "False"
        return error

    error_of_a_worker()
    second = error_of_a_worker()

    if early:
        assert zygote.wait(60) == 1
    assert (tmp_path / "threaded.py.log").read_text().count("imported") == 1
    assert "2 threads after the imports" in second
    (refusal,) = tmp_path.rglob("*.refused")
    os.utime(refusal, (0, time.time() - command.REFUSED_S))
    error_of_a_worker()
    assert (tmp_path / "threaded.py.log").read_text().count("imported") == 2
