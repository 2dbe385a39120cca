"""What differs between the releases of vLLM that an engine can run with.

What has moved is looked up here. Everything else that an engine uses is at the same place in all of them:
`python -m tools.vllm_releases` has the whole list, and checks the sources of a release against it.
"""

import re
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from importlib import import_module
from json import loads
from typing import Any

from vllm import __version__
from vllm.exceptions import VLLMValidationError
from vllm.v1.metrics.stats import SchedulerStats

CHECKED = ((0, 24), (0, 33))
"""The first and the last release whose sources have been checked. The tests run with the locked one."""
_PLAIN = ((0, 28), (0, 32))
"""The releases whose chat streams `plain_stream` reproduces, byte for byte. An older handler does not tell
whether it has a reasoning parser; a newer one makes streams in another way."""
_CONTINUED = ((0, 32), (0, 32))
"""The releases whose sequences `continued_stream` brings to where another engine's were."""

MOVED = {
    "make_arg_parser": (
        "vllm.entrypoints.common.cli_args",  # 0.33
        "vllm.entrypoints.launchers.cli_args",  # 0.29
        "vllm.entrypoints.openai.cli_args",
    ),
    "init_app_state": (
        "vllm.entrypoints.launchers.api_server.app_state",  # 0.29
        "vllm.entrypoints.openai.api_server",
    ),
    "ErrorResponse": (
        "vllm.entrypoints.serve.engine.protocol",  # 0.29
        "vllm.entrypoints.openai.engine.protocol",
    ),
    "create_error_response": (
        "vllm.entrypoints.serve.exception_handling.error_response",  # 0.28
        "vllm.entrypoints.serve.utils.error_response",
    ),
    "validate_structural_tag_payload": (
        "vllm.entrypoints.generate.base.protocol",  # 0.29
        "vllm.entrypoints.openai.engine.protocol",
    ),
    "GenerationError": ("vllm.exceptions", "vllm.entrypoints.openai.engine.protocol"),  # 0.29
    "GracefulHTTPError": ("vllm.exceptions",),  # 0.29
    "check_json_nesting": ("vllm.sampling_params",),  # 0.32
}
"""Where a name is: its newest place first, with the release that brought it there."""

_RELEASE = tuple(int(number) for number in re.findall(r"\d+", __version__)[:2])
_TOO_DEEP = "The JSON schema is nested too deeply."


def _range(releases: tuple[tuple[int, int], tuple[int, int]]) -> str:
    return " to ".join(dict.fromkeys(f"{major}.{minor}" for major, minor in releases))


def _refusal(missing: str) -> str:
    return f"vLLM {__version__} lacks what the engine needs: {missing}. It runs with {_range(CHECKED)}."


def _find(name: str, otherwise: Any = None) -> Any:
    """Return what vLLM calls `name`, or `otherwise`. Raises ImportError if there is neither."""
    for path in MOVED[name]:
        try:
            return getattr(import_module(path), name)
        except (ModuleNotFoundError, AttributeError) as error:
            if not (error.name or "").startswith("vllm.") and error.name != name:
                raise
    if otherwise is None:
        raise ImportError(_refusal(f"{name} in {' or '.join(MOVED[name])}"))
    return otherwise


@contextmanager
def name_missing_imports() -> Iterator[None]:
    """Raise an import of the block that vLLM cannot fulfil as an ImportError that names its release."""
    try:
        yield
    except ImportError as error:
        if not (error.name or "").startswith("vllm"):
            raise
        raise ImportError(_refusal(str(error))) from error


make_arg_parser: Any = _find("make_arg_parser")
init_app_state: Any = _find("init_app_state")
ErrorResponse: Any = _find("ErrorResponse")
create_error_response: Any = _find("create_error_response")
structural_tag_module: Any = import_module(_find("validate_structural_tag_payload").__module__)
"""The module in which vLLM looks `validate_structural_tag_payload` up, for it to be replaced there."""


class _GracefulHTTPError(_find("GenerationError")):  # type: ignore[misc]
    """An error with a status of its own. Before 0.29, vLLM passes on the status of no other."""

    def __init__(self, message: str, http_status: HTTPStatus) -> None:
        super().__init__(message)
        self.status_code = self.http_status = http_status


def _containers_in(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if isinstance(value, dict | list)]


def _check_json_nesting(spec: Any, *, structural_tag: bool = False) -> None:
    """Refuse JSON that is nested deeper than 64 levels, or 80 in a structural tag, as vLLM 0.32 does."""
    try:
        level = _containers_in([loads(spec) if isinstance(spec, str) else spec])
    except RecursionError:
        raise VLLMValidationError(_TOO_DEEP) from None
    except ValueError:
        return  # for the backend to refuse
    for _ in range(80 if structural_tag else 64):
        level = _containers_in(
            x for node in level for x in (node if isinstance(node, list) else node.values())
        )
    if level:
        raise VLLMValidationError(_TOO_DEEP)


GracefulHTTPError: Any = _find("GracefulHTTPError", _GracefulHTTPError)
check_json_nesting: Any = _find("check_json_nesting", _check_json_nesting)
STEP_DETAILS = "iteration_details" in SchedulerStats.__dataclass_fields__
"""Whether a step's statistics tell its batch. Before 0.26, vLLM logged a line per step instead."""
PLAIN_STREAMS = _PLAIN[0] <= _RELEASE <= _PLAIN[1]
CONTINUED_STREAMS = _CONTINUED[0] <= _RELEASE <= _CONTINUED[1]


def unchecked() -> str:
    """Return a sentence that says that the engine was not checked with this release of vLLM, or ""."""
    if CHECKED[0] <= _RELEASE <= CHECKED[1]:
        return ""
    return f"vLLM {__version__} has not been checked with this engine, which is made for {_range(CHECKED)}."


def lacking() -> list[str]:
    """Return a sentence for every advantage that the engine does without in this release of vLLM."""
    found = []
    if not PLAIN_STREAMS:
        found.append(
            f"vLLM {__version__} encodes chat streams itself, which takes more CPU per token; "
            f"the engine's own encoder is made for {_range(_PLAIN)}."
        )
    if not CONTINUED_STREAMS:
        found.append(
            f"vLLM {__version__} cannot go on with the streams of an engine that was lost; "
            f"that is made for {_range(_CONTINUED)}."
        )
    if not STEP_DETAILS:
        found.append(
            f"vLLM {__version__} does not report the batch of a step, as 0.26 and later do, "
            "so the autoscaling policy cannot learn how long steps take."
        )
    return found


def killed_from_outside(engine: Any) -> bool:
    """Return whether SIGKILL ended an engine core of this `AsyncLLM`: the kernel, Ray or an operator sent it.

    A core that fails by itself ends with a status or another signal, or has said so and lives for a moment.
    False where a release of vLLM does not show its processes.
    """
    manager = getattr(
        getattr(getattr(engine, "engine_core", None), "resources", None), "engine_manager", None
    )
    return any(process.exitcode == -signal.SIGKILL for process in getattr(manager, "processes", ()))
