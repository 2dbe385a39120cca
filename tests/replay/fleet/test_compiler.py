import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from replay.fleet import kernel
from replay.fleet.kernel.compiler import forget_stale


def test_what_was_compiled_before_a_source_changed_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "arrive", SimpleNamespace(stats=SimpleNamespace(cache_path=str(tmp_path))))
    assert not kernel.is_compiled()

    index = tmp_path / "arrivals.arrive-1.py311.nbi"
    index.touch()
    os.utime(index, (1000.0, 1000.0))
    forget_stale(tmp_path, changed=1000.0)
    assert kernel.is_compiled()

    forget_stale(tmp_path, changed=1001.0)
    assert not kernel.is_compiled()
