"""The names of vLLM's arguments, read from the installed vLLM without importing it.

Importing vLLM takes seconds and loads torch; `tideserve check` and the Serve controller must not.
The argument classes are plain dataclasses, so their field names can be read off the source.
"""

from __future__ import annotations

import ast
import difflib
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path

from serve_app.settings.tree import ModelSettings

_ENGINE = ("engine/arg_utils.py", ("EngineArgs", "AsyncEngineArgs"))
_FRONTEND = ("entrypoints/launchers/cli_args.py", ("BaseFrontendArgs",))

OWNED = frozenset(ModelSettings.model_fields) | {
    "served_model_name",
    "enable_auto_tool_choice",
    "disable_log_stats",
    "enable_logging_iteration_details",
    "runner",
    "convert",
    "structured_outputs_config",
}
"""Tideserve's own settings decide these; a second way to set them could contradict the first."""


@cache
def known_arguments() -> frozenset[str] | None:
    """The names that vLLM accepts, or None on a machine without vLLM, where the engine will check them."""
    spec = PathFinder.find_spec("vllm")
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin).parent
    names: set[str] = set()
    for file, classes in (_ENGINE, _FRONTEND):
        for node in ast.parse((root / file).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and node.name in classes:
                names |= {
                    item.target.id
                    for item in node.body
                    if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
                }
    return frozenset(names)


def check_engine_args(path: str, model: ModelSettings) -> list[str]:
    """The problems of a model's pass-through arguments, one line each."""
    problems = []
    known = known_arguments()
    for name, value in model.engine_args.items():
        if name in OWNED:
            problems.append(f"{path}.{name} = {value!r}: Tideserve's own settings decide this; set it there")
        elif known is not None and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            problems.append(f"{path}.{name} = {value!r}: vLLM has no such argument{hint}")
    return problems
