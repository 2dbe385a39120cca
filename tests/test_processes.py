"""What ends when another process is killed, and the memory that a process gives back."""

import subprocess
import sys
from pathlib import Path

import psutil

from serve_app.processes import is_alive
from tests.timing import wait_until

PARENT = """
import multiprocessing, time
from serve_app.processes import end_with_parent

def child():
    end_with_parent()
    print(multiprocessing.current_process().pid, flush=True)
    time.sleep(600)

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=child)
    process.start()
    process.join()
"""


def test_a_child_ends_with_its_killed_parent(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    folder = Path(__file__).parents[1]
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, env={"PYTHONPATH": str(folder)}
    ) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))

        parent.kill()

        wait_until(lambda: not is_alive(child), what="the end of the child")


KEEPS = """
import psutil
from serve_app.processes import give_back_memory

blocks = [b"x" * (4000 + n % 2) for n in range(10_000)]
kept = blocks[::50]  # glibc frees by itself only what has nothing in use above it
del blocks
before = psutil.Process().memory_info().rss
give_back_memory()
print(before - psutil.Process().memory_info().rss)
"""


def test_freed_memory_goes_back_to_the_kernel() -> None:
    folder = Path(__file__).parents[1]
    command = [sys.executable, "-c", KEEPS]
    freed = subprocess.run(command, env={"PYTHONPATH": str(folder)}, capture_output=True, check=True)
    assert int(freed.stdout) > 25 * 2**20
