import os
from pathlib import Path

from replay.fleet.kernel.compiler import forget_stale


def test_compiled_code_older_than_a_source_is_deleted(tmp_path: Path) -> None:
    index = tmp_path / "arrivals.arrive-1.py311.nbi"
    index.touch()
    os.utime(index, (1000.0, 1000.0))

    forget_stale(tmp_path, changed=1000.0)
    assert index.exists()
    forget_stale(tmp_path, changed=1001.0)
    assert not index.exists()
