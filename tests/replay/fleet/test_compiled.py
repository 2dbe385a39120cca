from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from replay.fleet import compiled, kernel


def test_what_the_cache_holds_counts_only_if_it_is_newer_than_the_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats = SimpleNamespace(cache_path=str(tmp_path))
    monkeypatch.setattr(compiled.kernel, "arrive", SimpleNamespace(stats=stats))
    assert not compiled.is_compiled()

    index = tmp_path / "kernel.arrive-1.py311.nbi"
    index.touch()
    source = Path(str(kernel.__file__)).stat().st_mtime
    os.utime(index, (source - 60.0, source - 60.0))
    assert not compiled.is_compiled()

    os.utime(index, (source + 1e6, source + 1e6))
    assert compiled.is_compiled()
