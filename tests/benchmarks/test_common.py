import os
import subprocess
import sys

from benchmarks.common.markdown import table
from benchmarks.common.process_tree import cpu_s, machine_busy_s, pss_bytes, resident_bytes, tree


def test_a_table_lines_up_as_plain_text_with_numbers_to_the_right() -> None:
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


def test_a_tree_has_the_children_and_what_they_use() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        processes = tree(os.getpid())
        assert {os.getpid(), child.pid} <= {process.pid for process in processes}
        assert cpu_s(processes) > 0
        assert 0 < pss_bytes(processes) <= resident_bytes(processes)
        child.communicate(b"\n")
    assert machine_busy_s() > 0
    assert tree(child.pid) == []
