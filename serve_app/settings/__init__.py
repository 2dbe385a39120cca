"""The typed settings and knobs of every configuration file."""

from serve_app.settings.load import knob_defaults, load_settings
from serve_app.settings.settings_error import SettingsError
from serve_app.settings.tree import (
    AppSettings,
    HttpSettings,
    IngressSettings,
    ModelSettings,
    RequestLogSettings,
)

__all__ = [
    "AppSettings",
    "HttpSettings",
    "IngressSettings",
    "ModelSettings",
    "RequestLogSettings",
    "SettingsError",
    "knob_defaults",
    "load_settings",
]
