"""Reading a Serve configuration file and the Tideserve applications in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from serve_app.settings import AppSettings, SettingsError, load_settings

IMPORT_PATH = "serve_app.app:build"


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A checked configuration: the document as written, and its applications' settings by name."""

    path: Path
    document: dict[str, Any]
    applications: dict[str, AppSettings]

    @property
    def port(self) -> int:
        """The HTTP port it asks for; Ray Serve's default is 8000."""
        return int((self.document.get("http_options") or {}).get("port", 8000))


def read_config(path: Path) -> ConfigFile:
    """Read and check `path`, without starting anything.

    Raises:
        SettingsError: for a file that cannot be read, is not a Serve configuration, or holds a
            Tideserve application with invalid settings.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError([f"{path}: {error.strerror}"]) from None
    except UnicodeDecodeError as error:
        raise SettingsError([f"{path}: not UTF-8: {error}"]) from None
    except yaml.YAMLError as error:
        raise SettingsError([f"{path}: not YAML: {error}"]) from None
    if not isinstance(document, dict) or not isinstance(document.get("applications"), list):
        raise SettingsError([f"{path}: must be a mapping with a list of `applications`"])
    _check_schema(path, document)
    applications = {}
    problems: list[str] = []
    for index, application in enumerate(document["applications"]):
        if application.get("import_path") != IMPORT_PATH:
            continue
        try:
            applications[str(application.get("name", "default"))] = load_settings(application.get("args"))
        except SettingsError as error:
            problems += [_located(index, line) for line in error.problems]
    if problems:
        raise SettingsError(problems)
    if not applications:
        raise SettingsError([f"{path}: no application has import_path = {IMPORT_PATH!r}"])
    return ConfigFile(path, document, applications)


def _located(index: int, problem: str) -> str:
    """A problem of an application's `args`, under its place in the file."""
    where = f"applications[{index}]"
    if problem.startswith("args"):
        return f"{where}.{problem}"
    return f"{where}.args.{problem}".replace(".args.(top level)", ".args")


def _check_schema(path: Path, document: dict[str, Any]) -> None:
    """Ray Serve's own schema: everything outside `args`."""
    from pydantic import ValidationError  # noqa: PLC0415
    from ray.serve.schema import ServeDeploySchema  # noqa: PLC0415

    from serve_app.settings.errors import from_pydantic  # noqa: PLC0415

    try:
        ServeDeploySchema.model_validate(document)
    except ValidationError as error:
        raise from_pydantic(error) from None
