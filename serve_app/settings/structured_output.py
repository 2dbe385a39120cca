"""Bounds on the grammars that clients send: JSON schemas, choices, regular expressions and others."""

from __future__ import annotations

import os
from typing import Annotated, Literal

from pydantic import Field, model_validator

from serve_app.settings.closed_model import ClosedModel

Backend = Literal["xgrammar", "guidance", "outlines", "lm-format-enforcer", "auto"]
_COMPACT = ("xgrammar", "guidance")
_COMPILE_S = 10.0
"""A string of `maxLength` 1,000 takes 5.4 s with a vocabulary of 128,000."""
_COMPILE_ONE_THREAD_S = 1.0
_ONE_THREAD_CPUS = 2
"""vLLM compiles in half as many threads as there are CPUs. On one, each compile holds up all others."""


class StructuredOutputSettings(ClosedModel):
    """Bounds on one grammar, and the backend that compiles it.

    Nothing can stop a compilation in the engine core, so each grammar is first compiled, with these bounds,
    in a process of its own.
    """

    backend: Backend = "xgrammar"
    """The backend that compiles and applies grammars. With `auto`, vLLM chooses one for the first request,
    and the engine core keeps it."""
    disable_any_whitespace: bool | None = None
    """Whether JSON may have no whitespace between its tokens; by default true with xgrammar and guidance, the
    backends that can forbid it. Where it is allowed, a small model may write blanks until its last token."""
    max_bytes: Annotated[int, Field(ge=256, le=1 << 20)] = 64 << 10
    """Size of one grammar, as JSON or text."""
    max_choices: Annotated[int, Field(ge=1, le=100_000)] = 2_000
    """Choices, or all enum values of one schema."""
    max_properties: Annotated[int, Field(ge=1, le=100_000)] = 1_000
    """All properties of one schema."""
    max_compile_s: Annotated[float, Field(gt=0, le=60)] | None = None
    """CPU seconds that one grammar may take to compile; by default 10, or 1 on one or two CPUs, where the
    engine core compiles all grammars in one thread. A larger vocabulary takes longer."""
    max_compile_bytes: Annotated[int, Field(ge=64 << 20)] = 1 << 30
    """Memory that one grammar may take while it is compiled."""

    @model_validator(mode="after")
    def _can_forbid_whitespace(self) -> StructuredOutputSettings:
        if self.disable_any_whitespace and self.backend not in _COMPACT:
            raise ValueError(
                f"disable_any_whitespace = true: backend = {self.backend!r} cannot forbid whitespace; "
                "'xgrammar' and 'guidance' can"
            )
        return self

    @property
    def compile_s(self) -> float:
        """CPU seconds that one grammar may take to compile, by default those for this machine."""
        if self.max_compile_s is not None:
            return self.max_compile_s
        return _COMPILE_S if (os.cpu_count() or 1) > _ONE_THREAD_CPUS else _COMPILE_ONE_THREAD_S

    @property
    def compact(self) -> bool:
        """Whether JSON has no whitespace between its tokens."""
        if self.disable_any_whitespace is None:
            return self.backend in _COMPACT
        return self.disable_any_whitespace
