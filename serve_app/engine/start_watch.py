"""A start of an engine goes on while it shows progress, however long that takes, and ends without progress.

vLLM waits for its engine core without a deadline: VLLM_ENGINE_READY_TIMEOUT_S begins when the core is ready.
"""

import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import psutil

from serve_app.engine.startup import Startup, group_processes

STILL_S = 600.0
"""A start ends after so long without progress. nvcc can take 192 s for one file on a slow core."""
STILL_ON_NODES_S = 3600.0
"""For an engine over several nodes, whose loads show only the step of a bar for each file: enough for 10 GB
from a disk that reads 3 MB/s."""
_LOOK_S = 2.0
_STEP_BYTES = 16 << 20
"""Fewer bytes are no progress: a core that hangs goes on logging that it waits. Any disk reads them in 600 s.
For one file, g++ reads 2 to 28 MB."""
_BAR = re.compile(rb"\d+%[^\r\n|]*\|[^\r\n]*")
"""A progress bar of vLLM, such as `Capturing CUDA graphs (decode, FULL):  45%|####`."""


def watch(
    startup: Startup,
    transferred: Callable[[], Mapping[int, int]],
    waited: Callable[[float], bool],
    still_s: float = STILL_S,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Return whether a start stood still for `still_s`, or False once `waited`, called with seconds, does.

    Progress is a new phase, 16 MiB that the engine's processes have read or written (`transferred`, by
    process) to download, load or compile, or a step of a progress bar, as for captured graphs.
    """
    seen, total, mark, moved_at = dict[int, int](), 0, tuple[object, ...](), clock()
    while not waited(_LOOK_S):
        for process, count in transferred().items():
            total += max(0, count - seen.get(process, 0))
            seen[process] = count
        found = (startup.current, total // _STEP_BYTES, last_bar(Path(startup.log)))
        if found != mark:
            mark, moved_at = found, clock()
        elif clock() - moved_at >= still_s:
            return True
    return False


@contextmanager
def watched(startup: Startup, still_s: float = STILL_S) -> Iterator[None]:
    """End the start within the block if it stands still. A thread watches it: vLLM blocks the event loop."""
    ended = Event()

    def run() -> None:
        if not watch(startup, transferred_bytes, ended.wait, still_s):
            return
        startup.stalled = f"nothing was read, compiled or captured for {still_s:g} s"
        # Without its representer, which leads the group, a fork would be killed before it could say why.
        own = (os.getpid(), os.getpgrp())
        others = [process for process in group_processes() if process not in own]
        for process in others:  # without its core, vLLM raises an error
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
        if not others:
            startup.fail("ended")
            os._exit(1)  # this process itself hangs, in an import or a download

    thread = Thread(target=run, daemon=True, name="start watch")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def transferred_bytes() -> dict[int, int]:
    """Return the bytes that the engine's processes have read and written, compilers included.

    Not those of this process, which reads and writes all the time, nor of workers that Ray started.
    """
    members, found = set(group_processes()), dict[int, int]()
    for process in psutil.process_iter():  # parents first
        with suppress(psutil.Error):
            if process.pid in members or process.ppid() in members:
                members.add(process.pid)  # ninja's compilers have groups of their own
                io = process.io_counters()  # what is read by a mapping counts as blocks only
                found[process.pid] = io.read_chars + io.write_chars + io.read_bytes
    found.pop(os.getpid(), None)
    return found


def last_bar(log: Path) -> bytes:
    """Return the last progress bar at the end of a log; b"" if there is none."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - (8 << 10)))
        return bytes((_BAR.findall(file.read()) or [b""])[-1])
    return b""
