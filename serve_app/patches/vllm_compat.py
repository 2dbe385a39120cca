"""The differences between the releases of vLLM that an engine can run with.

This module finds names that have moved. All other names that an engine uses are at the same place in all
releases: `python -m tools.vllm_releases` has the whole list, and checks the sources of a release against it.
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
"""The releases whose chat streams `plain_stream` reproduces byte for byte. An older handler does not show
whether it has a reasoning parser. A newer handler makes streams in another way."""
_CONTINUED = ((0, 32), (0, 32))
"""The releases in which `continued_call` can continue another engine's sequences."""

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
    "TranscriptionRequest": (
        "vllm.entrypoints.speech_to_text.transcription.protocol",
        "vllm.entrypoints.openai.speech_to_text.protocol",
    ),
    "TranslationRequest": (
        "vllm.entrypoints.speech_to_text.translation.protocol",
        "vllm.entrypoints.openai.speech_to_text.protocol",
    ),
    "GenerationError": ("vllm.exceptions", "vllm.entrypoints.openai.engine.protocol"),  # 0.29
    "GracefulHTTPError": ("vllm.exceptions",),  # 0.29
    "check_json_nesting": ("vllm.sampling_params",),  # 0.32
    "MM_PARSER_MAP": ("vllm.renderers.chat_utils", "vllm.entrypoints.chat_utils"),
}
"""The places of each name, newest first, with the release that moved the name there."""

_RELEASE = tuple(int(number) for number in re.findall(r"\d+", __version__)[:2])
_TOO_DEEP = "The JSON schema is nested too deeply."


def _range(releases: tuple[tuple[int, int], tuple[int, int]]) -> str:
    return " to ".join(dict.fromkeys(f"{major}.{minor}" for major, minor in releases))


def _refusal(missing: str) -> str:
    return f"vLLM {__version__} lacks what the engine needs: {missing}. It runs with {_range(CHECKED)}."


def find(name: str, otherwise: Any = None) -> Any:
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
    """Raise a failed import from vLLM within the block as an ImportError that names vLLM's release."""
    try:
        yield
    except ImportError as error:
        if not (error.name or "").startswith("vllm"):
            raise
        raise ImportError(_refusal(str(error))) from error


make_arg_parser: Any = find("make_arg_parser")
init_app_state: Any = find("init_app_state")
ErrorResponse: Any = find("ErrorResponse")
MM_PARSER_MAP: Any = find("MM_PARSER_MAP")
"""The types of content parts that vLLM knows."""
create_error_response: Any = find("create_error_response")
TranscriptionRequest: Any = find("TranscriptionRequest")
TranslationRequest: Any = find("TranslationRequest")
structural_tag_module: Any = import_module(find("validate_structural_tag_payload").__module__)
"""The module in which vLLM looks up `validate_structural_tag_payload`, and in which it can be replaced."""


class _GracefulHTTPError(find("GenerationError")):  # type: ignore[misc]
    """An error with its own HTTP status. Before 0.29, vLLM forwards the status of no other error."""

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
        return  # the backend will refuse it
    for _ in range(80 if structural_tag else 64):
        level = _containers_in(
            x for node in level for x in (node if isinstance(node, list) else node.values())
        )
    if level:
        raise VLLMValidationError(_TOO_DEEP)


GracefulHTTPError: Any = find("GracefulHTTPError", _GracefulHTTPError)
check_json_nesting: Any = find("check_json_nesting", _check_json_nesting)
STEP_DETAILS = "iteration_details" in SchedulerStats.__dataclass_fields__
"""Whether a step's statistics include its batch. Before 0.26, vLLM logged a line per step instead."""
PLAIN_STREAMS = _PLAIN[0] <= _RELEASE <= _PLAIN[1]
CONTINUED_STREAMS = _CONTINUED[0] <= _RELEASE <= _CONTINUED[1]


def unchecked() -> str:
    """Return a warning if the engine was not checked with this release of vLLM, else ""."""
    if CHECKED[0] <= _RELEASE <= CHECKED[1]:
        return ""
    return f"vLLM {__version__} has not been checked with this engine, which is made for {_range(CHECKED)}."


def lacking() -> list[str]:
    """Return a sentence for each feature that this release of vLLM lacks."""
    found = []
    if not PLAIN_STREAMS:
        found.append(
            f"vLLM {__version__} encodes chat streams itself, which takes more CPU per token; "
            f"the engine's own encoder is made for {_range(_PLAIN)}."
        )
    if not CONTINUED_STREAMS:
        found.append(
            f"vLLM {__version__} cannot continue the streams of a lost engine; "
            f"that needs {_range(_CONTINUED)}."
        )
    if not STEP_DETAILS:
        found.append(
            f"vLLM {__version__} does not report the batch of a step, as 0.26 and later do, "
            "so the autoscaling policy cannot learn how long steps take."
        )
    return found


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
