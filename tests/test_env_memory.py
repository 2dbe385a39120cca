import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from serve_app import env

_PROGRAM = """
import threading
from pathlib import Path

def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

def use_memory(ended, may_end):
    blocks = [b"x" * 100_000 for _ in range(60)]
    del blocks
    ended.release()
    may_end.acquire()

bytes(8 << 20)  # freed: from now on, glibc keeps up to 16 MiB at the end of each arena
before = resident_mib()
locks = [(threading.Lock(), threading.Lock()) for _ in range(8)]
for ended, may_end in locks:
    ended.acquire()
    may_end.acquire()
    threading.Thread(target=use_memory, args=(ended, may_end)).start()
    ended.acquire()
print(resident_mib() - before)
for _, may_end in locks:
    may_end.release()
"""


def kept_mib(flags: Mapping[str, str]) -> float:
    """Return the memory that a process keeps after eight threads in turn have used and freed 6 MiB."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", _PROGRAM]
    done = subprocess.run(command, env=outside | flags, capture_output=True, text=True, check=True)
    return float(done.stdout)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory as Linux tells it")
def test_threads_in_turn_share_freed_memory() -> None:
    assert kept_mib(env.ALWAYS) < 16.0
