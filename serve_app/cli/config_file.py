"""Reading a Serve configuration file and the Tideserve applications in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from serve_app.cli.application_checks import IMPORT_PATH, Cpus, check_application
from serve_app.cli.listening import DEFAULT_PORT, check_port
from serve_app.settings import AppSettings, SettingsError
from serve_app.settings.knobs import IngressKnobs, Knobs


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A checked configuration: the document as written, and by name what it says of each application."""

    path: Path
    document: dict[str, Any]
    applications: dict[str, AppSettings]
    knobs: dict[str, Mapping[str, Knobs]]
    """The knobs in force, by application and model, defaults included."""
    ingress_knobs: dict[str, IngressKnobs]

    @property
    def port(self) -> int:
        """The HTTP port."""
        return _port(self.document)


def read_config(path: Path, cpus: Cpus | None = None) -> ConfigFile:
    """Read and check `path` without starting anything, against `cpus` too if they are known.

    Raises:
        SettingsError: if the file cannot be read, is no Serve configuration, or holds a Tideserve application
            whose settings or knobs are invalid, or which another policy would scale.
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
    _port(document)
    checked = {}
    problems: list[str] = []
    for index, application in enumerate(document["applications"]):
        if application.get("import_path") != IMPORT_PATH:
            continue
        try:
            checked[str(application.get("name", "default"))] = check_application(application, cpus)
        except SettingsError as error:
            problems += [f"applications[{index}].{line}" for line in error.problems]
    if problems:
        raise SettingsError(problems)
    if not checked:
        raise SettingsError([f"{path}: no application has import_path = {IMPORT_PATH!r}"])
    return ConfigFile(
        path,
        document,
        {name: found.settings for name, found in checked.items()},
        {name: found.knobs for name, found in checked.items()},
        {name: found.ingress_knobs for name, found in checked.items()},
    )


def _port(document: Mapping[str, Any]) -> int:
    return check_port("http_options.port", (document.get("http_options") or {}).get("port", DEFAULT_PORT))


def _list(holder: object, key: str) -> list[Any]:
    """The list `holder[key]`, or an empty one if there is none."""
    found = holder.get(key) if isinstance(holder, dict) else None
    return found if isinstance(found, list) else []


def _check_schema(path: Path, document: dict[str, Any]) -> None:
    """Ray Serve's own schema: everything outside `args`."""
    from pydantic import ValidationError  # noqa: PLC0415
    from ray.serve.schema import ServeDeploySchema  # noqa: PLC0415

    from serve_app.settings.settings_error import from_pydantic  # noqa: PLC0415

    malformed = [
        f"applications[{index}].deployments[{number}] = {entry!r}: must be a mapping"
        for index, application in enumerate(document["applications"])
        for number, entry in enumerate(_list(application, "deployments"))
        if not isinstance(entry, dict)
    ]
    if malformed:  # the schema's own validators expect mappings
        raise SettingsError(malformed)
    try:
        ServeDeploySchema.model_validate(document)
    except ValidationError as error:
        raise from_pydantic(error) from None
