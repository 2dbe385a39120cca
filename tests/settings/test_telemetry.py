"""The settings of traces: each refused value is named with its key and bound."""

from typing import Any

import pytest

from serve_app.settings.load import load_settings
from serve_app.settings.settings_error import SettingsError


def traces(**given: Any) -> Any:
    return load_settings({"models": [{"name": "a"}], "telemetry": {"traces": given}}).telemetry.traces


def test_traces_are_off_by_default() -> None:
    assert load_settings({"models": [{"name": "a"}]}).telemetry.traces.enabled is False
    assert traces(enabled=True, endpoint="https://[::1]:4318/v1/traces").enabled is True


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"endpoint": "collector:4317"}, "endpoint = 'collector:4317'"),
        ({"endpoint": "http://user:secret@c:1"}, "endpoint"),
        ({"protocol": "http/json"}, "protocol = 'http/json'"),
        ({"headers_file": "headers"}, "headers_file = 'headers'"),
        ({"sampling_ratio": 1.5}, "sampling_ratio = 1.5"),
        ({"sampling_ratio": True}, "sampling_ratio = True: must be a number"),
        ({"service_name": ""}, "service_name = ''"),
        ({"resource_attributes": {"a b": "c"}}, "resource_attributes"),
        ({"resource_attributes": {"service.name": "c"}}, "Tideserve sets it; see service_name"),
        ({"headers": {"x": "y"}}, "headers"),
    ],
)
def test_an_invalid_value_is_named_with_its_key(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError) as caught:
        traces(**given)

    (line,) = caught.value.problems
    assert line.startswith("telemetry.traces.")
    assert problem in line
