from __future__ import annotations

import pytest
from pydantic import ValidationError

from serve_app.settings.structured_output import StructuredOutputSettings


@pytest.mark.parametrize(("backend", "compact"), [("xgrammar", True), ("guidance", True), ("auto", False)])
def test_whitespace_is_forbidden_wherever_the_backend_can(backend: str, compact: bool) -> None:
    assert StructuredOutputSettings.model_validate({"backend": backend}).compact is compact


def test_whitespace_can_be_allowed_again() -> None:
    assert not StructuredOutputSettings(disable_any_whitespace=False).compact


def test_a_backend_that_cannot_forbid_it_is_named() -> None:
    with pytest.raises(ValidationError, match="backend = 'outlines' cannot"):
        StructuredOutputSettings(backend="outlines", disable_any_whitespace=True)


@pytest.mark.parametrize(("cpus", "seconds"), [(1, 1), (2, 1), (3, 10), (64, 10), (None, 1)])
def test_less_time_is_given_where_one_thread_compiles_for_all(
    cpus: int | None, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cpus)

    assert StructuredOutputSettings().compile_s == seconds
    assert StructuredOutputSettings(max_compile_s=5).compile_s == 5
