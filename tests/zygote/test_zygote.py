"""The zygote itself: for whom it forks, and when it ends."""

import contextlib
import gc
import json
import os
import socket
import struct
import subprocess
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import pytest

from serve_app.zygote.python import start_zygote
from serve_app.zygote.request import Request
from serve_app.zygote.zygote import collector_off
from tests.zygote.conftest import MARK, Start, wait_for


def test_it_ends_with_its_owner_and_takes_its_socket_away(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as owner:
        path = tmp_path / "zygote"
        command = [sys.executable, "-m", "serve_app.zygote.zygote", str(path), str(owner.pid), MARK]
        with subprocess.Popen(command) as zygote:
            wait_for(path)
            owner.communicate(b"\n", timeout=60)
            assert zygote.wait(60) == 0
    assert not path.exists()


_COUNT = "import torch.cuda as c\nc._is_in_bad_fork = lambda: True\n"
"""A count of the devices, as torch makes it with a driver, after which `is_initialized` is still false."""


@pytest.mark.parametrize(
    ("imported", "why"),
    [
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n",
            "2 threads after the imports",
        ),
        (_COUNT, "an import has used CUDA"),
    ],
    ids=["threads", "cuda"],
)
def test_it_refuses_to_fork_what_would_be_broken(tmp_path: Path, imported: str, why: str) -> None:
    (tmp_path / "threaded.py").write_text(imported)
    command = [sys.executable, "-m", "serve_app.zygote.zygote", str(tmp_path / "zygote"), str(os.getpid())]
    ended = subprocess.run(
        [*command, "threaded"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
    )
    assert ended.returncode == 1
    assert why in ended.stderr


def test_forks_have_what_imports_set_unless_they_are_given_another(tmp_path: Path, python: Start) -> None:
    (tmp_path / "setting.py").write_text("import os\nos.environ.update(SET='by import', GIVEN='by import')\n")
    path = tmp_path / "zygote"
    command = [sys.executable, "-m", "serve_app.zygote.zygote", str(path), str(os.getpid()), "setting"]
    search = os.pathsep.join([str(tmp_path), *sys.path])
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": search}) as zygote:
        wait_for(path)
        fork = python("-c", "import os; print(os.environ['SET'], '/', os.environ['GIVEN'])")
        assert fork.communicate(timeout=60)[0].strip() == "by import / to the fork"
        zygote.kill()


def test_a_client_that_says_nothing_or_leaves_costs_nobody_anything(
    zygote: subprocess.Popen[bytes], python: Start, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as silent, socket.socket(socket.AF_UNIX) as gone:
        gone.connect(str(tmp_path / "zygote"))
        gone.close()
        silent.connect(str(tmp_path / "zygote"))
        process = python("-c", "print('forked')")
        silent.close()
        assert process.communicate(timeout=60)[0].strip() == "forked"
    assert zygote.poll() is None


def test_ray_is_imported_with_the_first_request(tmp_path: Path, python: Start) -> None:
    for name in ("early", "late"):
        (tmp_path / f"{name}.py").write_text(
            "import os\nseen = os.environ.get('GIVEN')\n"
            "try:\n    import ray\nexcept ImportError:\n    ray = None\n"
        )
    path = tmp_path / "zygote"
    command = [sys.executable, "-m", "serve_app.zygote.zygote", str(path), str(os.getpid())]
    search = os.pathsep.join([str(tmp_path), *sys.path])
    with subprocess.Popen(
        [*command, "early", "--", "late"], env={**os.environ, "PYTHONPATH": search}
    ) as zygote:
        wait_for(path)
        report = (
            "import sys; print(*[(m.seen, m.ray is None) for m in map(sys.modules.get, ('early', 'late'))])"
        )
        process = python("-c", report)
        assert process.communicate(timeout=60)[0].strip() == "(None, True) ('to the fork', False)"
        zygote.kill()


def test_forks_draw_different_random_ids(tmp_path: Path, python: Start) -> None:
    """Ray makes the ids of tasks from these. Two callers with the same ids once ended Serve's controller."""
    path = tmp_path / "zygote"
    draw = "from ray import ObjectID; print(ObjectID.from_random().hex())"
    modules = ["--", "serve_app.patches.ray:draw_class_ids_from_kernel", "ray.serve._private.replica"]
    with start_zygote(str(path), os.getpid(), os.environ, subprocess.DEVNULL, modules) as zygote:
        wait_for(path)
        forks = [python("-c", draw) for _ in range(2)]
        drawn = {fork.communicate(timeout=120)[0] for fork in forks}
        zygote.kill()

    assert len(drawn) == 2


def open_descriptors(process: subprocess.Popen[bytes]) -> int:
    return len(os.listdir(f"/proc/{process.pid}/fd"))


def refused(path: Path, data: bytes, descriptors: list[int]) -> None:
    """Send `data` with `descriptors`, say that no more comes, and wait until the zygote has let go."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(60)
        client.connect(str(path))
        socket.send_fds(client, [data], descriptors)
        client.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):  # the zygote closed before it had read everything
            assert client.recv(16) == b""


def whole_request(descriptors: list[int]) -> bytes:
    data = json.dumps(asdict(Request(["-c", ""], {}, "/", 0, 0, [0], [], 0, descriptors))).encode()
    return struct.pack("!I", len(data)) + data


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0",
        struct.pack("!I", 100) + b"{",
        struct.pack("!I", 4) + b"{]{]",
        struct.pack("!I", 2) + b"{}",
        struct.pack("!I", 2) + b"[]",
        whole_request([0, 1, 2, 3]),
    ],
    ids=["a torn length", "a torn body", "no JSON", "no fields", "a list", "fewer descriptors than named"],
)
def test_a_request_that_fails_leaves_no_descriptor_open(
    zygote: subprocess.Popen[bytes], python: Start, tmp_path: Path, data: bytes
) -> None:
    path = tmp_path / "zygote"
    refused(path, b"\0\0", [0])  # so that whatever opens once is open
    before = open_descriptors(zygote)

    for _ in range(5):
        refused(path, data, [0, 1, 2])

    assert open_descriptors(zygote) == before
    assert python("-c", "print('forked')").communicate(timeout=60)[0].strip() == "forked"


def test_a_fork_that_fails_leaves_no_descriptor_open(tmp_path: Path) -> None:
    path = tmp_path / "zygote"
    code = (
        "import os\n"
        "def fork(): raise BlockingIOError('Resource temporarily unavailable')\n"
        "os.fork = fork\n"
        "from serve_app.zygote.zygote import main\nmain()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path), str(os.getpid()), MARK]) as zygote:
        wait_for(path)
        refused(path, whole_request([0]), [0])
        before = open_descriptors(zygote)

        for _ in range(5):
            refused(path, whole_request([0, 1, 2]), [0, 1, 2])

        assert open_descriptors(zygote) == before
        zygote.kill()


@pytest.mark.usefixtures("zygote")
def test_fork_keeps_what_the_zygote_has_frozen(python: Start) -> None:
    code = (
        "import gc; frozen = gc.get_freeze_count(); gc.unfreeze(); print(gc.get_freeze_count() == frozen > 0)"
    )
    assert python("-c", code).communicate(timeout=60)[0].strip() == "True"


def test_collector_is_off_only_within_the_block() -> None:
    with collector_off():
        assert not gc.isenabled()
    with pytest.raises(ModuleNotFoundError), collector_off():
        import_module("there_is_no_such_module")
    assert gc.isenabled()
