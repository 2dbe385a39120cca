import os
import signal
import subprocess
import sys

import pytest

from benchmarks.common.markdown import table
from benchmarks.common.process_tree import cpu_s, machine_busy_s, pss_bytes, tree


def test_table_aligns_its_columns_in_plain_text() -> None:
    rows = [["bare", "1,300"], ["tideserve", "9"]]

    assert table(["", "tok/s"], rows).splitlines() == [
        "|           | tok/s |",
        "| --------- | ----: |",
        "| bare      | 1,300 |",
        "| tideserve |     9 |",
    ]
    assert table(["", "tok/s"], rows, numbers=False).splitlines()[1:] == [
        "| --------- | ----- |",
        "| bare      | 1,300 |",
        "| tideserve | 9     |",
    ]


def test_process_tree_counts_children_and_their_use() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        processes = tree(os.getpid())
        assert {os.getpid(), child.pid} <= {process.pid for process in processes}
        assert cpu_s(processes) > 0
        assert pss_bytes(processes) > 1 << 20
        child.communicate(b"\n")
    assert machine_busy_s() > 0
    assert tree(child.pid) == []


SCRIPT = """
import signal
from benchmarks.common.interruption import end_on_signals

signal.signal(signal.SIGINT, signal.SIG_IGN)
end_on_signals()
try:
    print("begun", flush=True)
    signal.pause()
except KeyboardInterrupt:
    print("ended in order")
"""


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_raises_keyboard_interrupt(which: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "begun\n"
        running.send_signal(which)
        assert running.communicate(timeout=60)[0].splitlines()[-1] == "ended in order"
