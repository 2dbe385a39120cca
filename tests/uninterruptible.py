"""A real process in uninterruptible sleep: its state is D, and SIGKILL does not end it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_FREEZER = Path("/sys/fs/cgroup/freezer")

needs_freezer = pytest.mark.skipif(
    not os.access(_FREEZER / "cgroup.procs", os.W_OK),
    reason="a process in uninterruptible sleep needs root and the freezer of cgroups v1",
)


@contextmanager
def uninterruptible(pid: int) -> Iterator[None]:
    """Within the block, the process is in state D, and signals reach it at the end of the block."""
    group = _FREEZER / f"tideserve-test-{pid}"
    group.mkdir()
    state = group / "freezer.state"
    try:
        (group / "cgroup.procs").write_text(str(pid))
        state.write_text("FROZEN")
        while state.read_text().strip() != "FROZEN":
            pass
        yield
    finally:
        state.write_text("THAWED")
        for left in (group / "cgroup.procs").read_text().split():
            (_FREEZER / "cgroup.procs").write_text(left)
        while (group / "cgroup.procs").read_text():
            pass  # it is about to end
        group.rmdir()
