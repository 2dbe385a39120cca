"""The compiler of the kernel: for functions that Python calls, and for those that only the kernel calls."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from numba import njit

from replay.fleet import layout
from serve_app.wire import signals

F = TypeVar("F", bound=Callable[..., Any])

_SOURCES = (Path(layout.__file__), Path(signals.__file__), *Path(__file__).parent.glob("*.py"))
_CHANGED = max(source.stat().st_mtime for source in _SOURCES)


def inner(function: F) -> F:
    """Compile a function that only other compiled functions call."""
    # A wrapper for calls from Python would double the time to compile.
    options = {"error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True, "no_cpython_wrapper": True}
    compiled: F = njit(**options)(function)
    return compiled


def entry(function: F) -> F:
    """Compile a function that Python calls, and keep it on disk together with all that it calls."""
    # Nothing in the kernel allocates, and the caller keeps the arrays. Counting references (`_nrt`) takes
    # half of the time, in atomic operations at every look at a record.
    compiled: Any = njit(cache=True, error_model="numpy", _nrt=False, no_cfunc_wrapper=True)(function)
    forget_stale(Path(compiled.stats.cache_path), _CHANGED)
    found: F = compiled
    return found


def is_compiled(function: Any) -> bool:
    """Whether the compiler's cache has this entry; otherwise its first call takes up to 20 s more."""
    return any(Path(function.stats.cache_path).glob(f"*.{function.__name__}-*.nbi"))


def forget_stale(cache: Path, changed: float) -> None:
    """Delete the code that was compiled before the Unix time `changed`.

    numba compares a function's own file only. The functions that it calls, and the constants that are
    compiled in, are in other files.
    """
    for index in cache.glob("*.nbi"):
        with suppress(OSError):  # another process was faster
            if index.stat().st_mtime < changed:
                index.unlink()
