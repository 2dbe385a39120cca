"""Reading a Serve configuration file and the Tideserve applications in it."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from serve_app.api.api_keys import ApiKeyFile
from serve_app.cli.application_checks import IMPORT_PATH, CheckedApplication, Cpus, check_application
from serve_app.cli.fit_check import fit_problems
from serve_app.cli.listening import LOOPBACK, check_port
from serve_app.settings.document import parse_yaml, read_text
from serve_app.settings.settings_error import SettingsError, from_pydantic
from serve_app.settings.tree import ModelSettings


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A checked configuration: the document as written, and Tideserve's applications in it by name."""

    path: Path
    document: dict[str, Any]
    applications: dict[str, CheckedApplication]

    @property
    def keyless(self) -> list[str]:
        return [name for name, app in self.applications.items() if app.settings.http.api_keys_file is None]

    @property
    def has_page(self) -> bool:
        return any(app.settings.ui for app in self.applications.values())

    @property
    def forked(self) -> list[ModelSettings]:
        """The models whose engine replicas are forked from zygotes.

        Applications with their own `runtime_env` are left out: only their ingress knows the environment.
        """
        own = {app.get("name", "default") for app in self.document["applications"] if app.get("runtime_env")}
        settings = [app.settings for name, app in self.applications.items() if name not in own]
        return [
            engine for each in settings if each.zygote for model in each.models for engine in model.engines()
        ]

    @property
    def port(self) -> int:
        return _port(self.document)

    @property
    def host(self) -> str:
        """The `http_options.host` that is given, or else 127.0.0.1."""
        host = (self.document.get("http_options") or {}).get("host")
        return LOOPBACK if host is None else str(host)

    def check_files(self) -> None:
        """Check the files that the applications name, on this machine.

        Raises:
            SettingsError: if a file of API keys cannot be read, or a model's folder does not exist.
        """
        for app in self.applications.values():
            if app.settings.http.api_keys_file is not None:
                ApiKeyFile(app.settings.http.api_keys_file, check=app.settings.check_keys)
            if missing := missing_folders(app.settings.models):
                raise SettingsError(missing)
        self.check_fit()

    def check_fit(self) -> None:
        """Raise SettingsError if a model cannot fit. Models whose files are not here pass."""
        if problems := [line for app in self.applications.values() for line in fit_problems(app.settings)]:
            raise SettingsError(problems)


def missing_folders(models: Sequence[ModelSettings]) -> list[str]:
    """Return a line for each model whose folder is not on this machine."""
    return [
        f"models[{number}].model = {model.model!r}: no such folder on this machine"
        for number, model in enumerate(models)
        if os.path.isabs(model.model) and not os.path.exists(model.model)
    ]


def read_config(path: Path, cpus: Cpus | None = None) -> ConfigFile:
    """Read and check `path` without starting anything.

    Args:
        cpus: The CPUs that the applications must fit into; None skips this check.

    Raises:
        SettingsError: if the file cannot be read, has a key twice or is no Serve configuration. Also if a
            Tideserve application has invalid settings or knobs, or another policy.
    """
    document = parse_yaml(read_text(path), str(path)).value
    if not isinstance(document, dict) or not isinstance(document.get("applications"), list):
        raise SettingsError([f"{path}: must be a mapping with a list of `applications`"])
    _check_schema(document)
    _check_timeout(document)
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
    return ConfigFile(path, document, checked)


def _port(document: Mapping[str, Any]) -> int:
    """The HTTP port; 8000, Ray Serve's default, if none is given."""
    return check_port("http_options.port", (document.get("http_options") or {}).get("port", 8000))


def _check_timeout(document: Mapping[str, Any]) -> None:
    """Refuse `request_timeout_s`: Ray answers in plain text, and cuts a stream without an error event."""
    timeout_s = (document.get("http_options") or {}).get("request_timeout_s")
    if timeout_s:
        raise SettingsError(
            [
                f"http_options.request_timeout_s = {timeout_s!r}: must be left out: Ray would cut streams. "
                "The knob cold_wait_timeout_s bounds the wait; a client sends X-Request-Timeout-Seconds."
            ]
        )


def _check_schema(document: dict[str, Any]) -> None:
    """Check everything outside `args` with Ray Serve's own schema."""
    from ray.serve.schema import ServeDeploySchema  # noqa: PLC0415  Ray takes a second to import

    malformed = []  # the schema's own validators expect mappings
    for index, application in enumerate(document["applications"]):
        entries = application.get("deployments") if isinstance(application, dict) else None
        for number, entry in enumerate(entries if isinstance(entries, list) else ()):
            if not isinstance(entry, dict):
                malformed.append(
                    f"applications[{index}].deployments[{number}] = {entry!r}: must be a mapping"
                )
    if malformed:
        raise SettingsError(malformed)
    try:
        ServeDeploySchema.model_validate(document)
    except ValidationError as error:
        raise from_pydantic(error) from None
