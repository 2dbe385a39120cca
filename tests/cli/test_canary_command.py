"""`tideserve canary`: what it sends, what it prints, and what it refuses."""

import json
from collections import Counter
from typing import Any

import pytest

from serve_app.cli.canary_command import asked_change, side_by_side
from serve_app.policy.canary import Comparison
from serve_app.settings.knobs import CanaryRules
from serve_app.settings.settings_error import SettingsError


@pytest.mark.parametrize(
    ("action", "to", "shadow", "change"),
    [
        (None, None, None, {}),
        ("promote", None, None, {"share": 1.0}),
        ("abort", None, "0", {"share": 0.0, "shadow": 0.0}),
        (None, "new=0.25", None, {"version": "new", "share": 0.25}),
        (None, "new=0", "0.01", {"version": "new", "share": 0.0, "shadow": 0.01}),
    ],
)
def test_options_are_a_change(action: Any, to: Any, shadow: Any, change: dict[str, Any]) -> None:
    assert asked_change(action, to, shadow) == change


@pytest.mark.parametrize(
    ("action", "to", "shadow", "problem"),
    [
        (None, "new=1.5", None, "--to = '1.5': must be a number, at least 0 and at most 1"),
        (None, "new=x", None, "--to = 'x': must be a number"),
        (None, "0.25", None, "--to = '0.25': must be VERSION=SHARE"),
        ("abort", "new=0.5", None, "--to = 'new=0.5': not with abort"),
        (None, None, "0.1", "--shadow = '0.1': only with --to"),
        (None, "new=0.1", "2", "--shadow = '2': must be a number, at least 0 and at most 1"),
    ],
)
def test_errors_name_option_value_and_bound(action: Any, to: Any, shadow: Any, problem: str) -> None:
    with pytest.raises(SettingsError) as raised:
        asked_change(action, to, shadow)

    assert problem in str(raised.value)


def test_both_versions_are_printed_with_intervals() -> None:
    new, old = Counter(requests=100, errors=5, answers=95, tokens=950), Counter(requests=300, answers=300)
    found = Comparison(0.0, 0.0).look(new, old, CanaryRules(), 2.0).document()
    lines = side_by_side("tide@new", 1, {"share": 0.25, "shadow": 0.0, "why": "settings", **found})

    assert lines[0] == "tide@new: share 0.25, copies 0, ready replicas 1"
    (errors,) = (line for line in lines if "requests that failed" in line)
    assert "5 of 100 (2.2-11 %)" in errors
    assert "0 of 300 (0-1.3 %)" in errors
    json.dumps(found)
