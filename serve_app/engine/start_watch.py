"""A start of an engine goes on while it shows progress, however long that takes, and ends without progress.

vLLM waits for its engine core without a deadline: VLLM_ENGINE_READY_TIMEOUT_S begins when the core is ready.
"""

import logging
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

logger = logging.getLogger("ray.serve")

STILL_S = 600.0
"""A start ends after so long without progress. nvcc took 192 s for one file on a slow core."""
_LOOK_S = 2.0
_STEP_BYTES = 1 << 20
"""Fewer bytes are no progress: a core that hangs goes on logging that it waits."""
_TAIL_BYTES = 8 << 10
_BAR = re.compile(rb"([A-Z][^:%|()\r\n]*(?:\([^()\r\n]*\))?): +(\d+)%[^\r\n|]*\|")
"""A progress bar of vLLM, such as `Capturing CUDA graphs (decode, FULL):  45%|`."""


class StartWatch:
    """Watches one start.

    Progress is a new phase, a mebibyte that the engine's processes have read or written, as they do when they
    download, load or compile, or a step of a progress bar, as for captured graphs.

    Args:
        startup: The start.
        transferred: Returns the bytes that each process of the engine has read and written, by its id.
        end: Ends the start's other processes. Returns whether there were any: vLLM then raises an error.
    """

    def __init__(
        self, startup: Startup, transferred: Callable[[], Mapping[int, int]], end: Callable[[], bool]
    ) -> None:
        self._startup = startup
        self._transferred = transferred
        self._end = end
        self._seen: dict[int, int] = {}
        self._bytes = 0
        self._mark: tuple[object, ...] = ()
        self._moved_at = 0.0

    def look(self, now: float) -> bool:
        """Note what has moved by `now`, in seconds. Returns False once the start has been ended."""
        for process, count in self._transferred().items():
            self._bytes += max(0, count - self._seen.get(process, 0))
            self._seen[process] = count
        bar = last_bar(Path(self._startup.log))
        mark = (self._startup.current, self._bytes // _STEP_BYTES, bar)
        if mark != self._mark:
            self._mark, self._moved_at = mark, now
            self._startup.note(bar or f"{self._bytes / 1e9:.1f} GB read and written")
        if now - self._moved_at < STILL_S:
            return True
        self._startup.stalled = f"nothing was read, compiled or captured for {STILL_S:g} s"
        if not self._end():
            self._startup.fail("ended")
            os._exit(1)  # this process hangs itself, in an import or a download
        return False


@contextmanager
def watched(startup: Startup) -> Iterator[None]:
    """Watch the start within the block, in a thread: vLLM blocks the event loop."""
    watch, ended = StartWatch(startup, transferred_bytes, end_others), Event()

    def run() -> None:
        goes_on = True
        while goes_on and not ended.wait(_LOOK_S):
            try:
                goes_on = watch.look(time.monotonic())
            except Exception:  # the GCS does not answer, for example
                logger.exception("the progress of the start is unknown for a moment")

    thread = Thread(target=run, daemon=True, name="start watch")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def transferred_bytes() -> dict[int, int]:
    """Return the bytes that the engine's processes have read and written, compilers included.

    Not those of this process, which reads and writes all the time, and not those of workers that Ray started.
    """
    members, found = set(group_processes()), dict[int, int]()
    for process in psutil.process_iter():  # parents first
        with suppress(psutil.Error):
            if process.pid not in members and process.ppid() not in members:
                continue
            members.add(process.pid)  # ninja's compilers have groups of their own
            io = process.io_counters()
            found[process.pid] = (
                io.read_chars + io.write_chars + io.read_bytes
            )  # mapped files count as blocks only
    found.pop(os.getpid(), None)
    return found


def end_others() -> bool:
    """Kill all other processes of this replica. Returns whether there are any."""
    others = [process for process in group_processes() if process != os.getpid()]
    for process in others:
        with suppress(OSError):
            os.kill(process, signal.SIGKILL)
    return bool(others)


def last_bar(log: Path) -> str:
    """Return the last progress bar in a log, as `Loading shards: 45 %`; "" if there is none."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        if bars := _BAR.findall(file.read()):
            return f"{bars[-1][0].decode(errors='replace').strip()}: {int(bars[-1][1])} %"
    return ""
