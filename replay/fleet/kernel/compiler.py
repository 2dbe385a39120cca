"""How the kernel is compiled: the functions that Python calls, and those that only these call."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from numba import njit

from replay.fleet import layout

F = TypeVar("F", bound=Callable[..., Any])

_SOURCES = (Path(layout.__file__), *Path(__file__).parent.glob("*.py"))
_CHANGED = max(source.stat().st_mtime for source in _SOURCES)


def inner(function: F) -> F:
    """Compile a function that only other compiled functions call."""
    # A wrapper for calls from Python would be half of the time it takes to compile.
    options = {"error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True, "no_cpython_wrapper": True}
    compiled: F = njit(**options)(function)
    return compiled


def entry(function: F) -> F:
    """Compile a function that Python calls, and keep it on disk together with all that it calls."""
    # Nothing in the kernel allocates, and the caller keeps the arrays. Counting references to them all the
    # same (`_nrt`), in atomic operations at every look at a record, would take half of the time.
    compiled: Any = njit(cache=True, error_model="numpy", _nrt=False, no_cfunc_wrapper=True)(function)
    forget_stale(Path(compiled.stats.cache_path), _CHANGED)
    found: F = compiled
    return found


def forget_stale(cache: Path, changed: float) -> None:
    """Delete what was compiled before the Unix time `changed`.

    numba compares a function's own file only; the functions that it calls and the constants that are
    compiled in stand in others.
    """
    for index in cache.glob("*.nbi"):
        with suppress(OSError):  # another process was faster
            if index.stat().st_mtime < changed:
                index.unlink()
