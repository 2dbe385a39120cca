"""Weights that an engine will ask for are in the page cache before it does."""

import ctypes
import mmap
import os
import time
from pathlib import Path

import psutil
import pytest

from serve_app.weights import page_cache
from serve_app.weights.page_cache import CHUNK_BYTES, prefetch

PAGE = mmap.PAGESIZE
SIZE = 8 * CHUNK_BYTES
LIMIT_S = 20.0


def written(path: Path) -> Path:
    """A file of which nothing is in memory."""
    with path.open("wb") as file:
        file.write(os.urandom(SIZE))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


def resident(path: Path) -> int:
    """Bytes of a file that are in memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as file, mmap.mmap(file.fileno(), SIZE, flags=mmap.MAP_PRIVATE) as mapped:
        pages = (ctypes.c_ubyte * (SIZE // PAGE))()
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(SIZE), pages) == 0
        return PAGE * sum(page & 1 for page in pages)


def test_only_weights_come_into_memory(tmp_path: Path) -> None:
    weights, other = written(tmp_path / "a.safetensors"), written(tmp_path / "a.bin")
    if resident(weights):
        pytest.skip("this file system keeps files in memory")

    assert prefetch(str(tmp_path)) == SIZE

    end = time.monotonic() + LIMIT_S  # the kernel reads in the background
    while resident(weights) < SIZE:
        assert time.monotonic() < end
    assert resident(other) == 0


def test_weights_too_large_for_memory_stay_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "a.safetensors")
    available = psutil.virtual_memory()._replace(available=2 * SIZE - 1)
    monkeypatch.setattr(page_cache.psutil, "virtual_memory", lambda: available)
    assert prefetch(str(tmp_path)) == 0


@pytest.mark.parametrize("model", ["org/never-downloaded", "/nowhere/at-all"])
def test_an_absent_model_is_not_read(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert prefetch(model) == 0
