"""The differences between the two releases of vLLM that an engine can run with: the locked one and the next.

All names that have not moved are at the same place in both: `python -m tools.vllm_releases` has the whole
list, and checks the sources of a release against it.
"""

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from vllm import __version__

LOCKED, NEXT = (0, 32), (0, 33)
MOVED = {
    "make_arg_parser": ("vllm.entrypoints.common.cli_args", "vllm.entrypoints.launchers.cli_args"),
}
"""The place of each name in the next and in the locked release."""

_RELEASE = tuple(int(number) for number in re.findall(r"\d+", __version__)[:2])
_CHECKED = " and ".join(f"{major}.{minor}" for major, minor in (LOCKED, NEXT))
OWN_STREAMS = _RELEASE == LOCKED
"""Whether `plain_stream` reproduces the chat streams of this release byte for byte, and `continued_call`
can continue another engine's sequences."""


def _refusal(missing: str) -> str:
    return f"vLLM {__version__} lacks what the engine needs: {missing}. It runs with {_CHECKED}."


def find(name: str) -> Any:
    """Return what vLLM calls `name`. Raises ImportError if there is none."""
    for path in MOVED[name]:
        try:
            return getattr(import_module(path), name)
        except (ModuleNotFoundError, AttributeError) as error:
            if not (error.name or "").startswith("vllm.") and error.name != name:
                raise
    raise ImportError(_refusal(f"{name} in {' or '.join(MOVED[name])}"))


@contextmanager
def name_missing_imports() -> Iterator[None]:
    """Raise a failed import from vLLM within the block as an ImportError that names vLLM's release."""
    try:
        yield
    except ImportError as error:
        if not (error.name or "").startswith("vllm"):
            raise
        raise ImportError(_refusal(str(error))) from error


make_arg_parser: Any = find("make_arg_parser")


def unchecked() -> str:
    """Return a warning if the engine was not checked with this release of vLLM, else ""."""
    if _RELEASE in (LOCKED, NEXT):
        return ""
    return f"vLLM {__version__} has not been checked with this engine, which is made for {_CHECKED}."


def lacking() -> str:
    """Return a sentence about what the engine cannot do with this release of vLLM, or ""."""
    if OWN_STREAMS:
        return ""
    return (
        f"vLLM {__version__} encodes chat streams itself, which takes more CPU per token, and cannot "
        f"continue the streams of a lost engine; the engine's own encoder and continuation are made for "
        f"{'.'.join(map(str, LOCKED))}."
    )


def killed_from_outside(engine: Any) -> bool:
    """Return whether SIGKILL ended an engine core of this `AsyncLLM`. The kernel, Ray or an operator sends
    it.

    A core that fails by itself ends with a status or another signal, or reports its error first. Returns
    False if this release of vLLM does not show its processes.
    """
    manager = getattr(
        getattr(getattr(engine, "engine_core", None), "resources", None), "engine_manager", None
    )
    return any(process.exitcode == -signal.SIGKILL for process in getattr(manager, "processes", ()))
