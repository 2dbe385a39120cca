from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from serve_app.cli.config_file import ConfigFile, read_config
from serve_app.settings import SettingsError

REPOSITORY = Path(__file__).parents[2]
SHIPPED = sorted((REPOSITORY / "config").glob("*.yaml"))
OURS = "serve_app.app:build"


def application(name: str = "tide", import_path: str = OURS, **args: object) -> dict[str, object]:
    return {
        "name": name,
        "route_prefix": f"/{name}",
        "import_path": import_path,
        "args": args or {"models": [{"name": "a"}]},
    }


def read(folder: Path, document: object) -> ConfigFile:
    path = folder / "serve.yaml"
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    return read_config(path)


def problems(folder: Path, document: object) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        read(folder, document)
    return caught.value.problems


def test_there_are_configurations_to_check() -> None:
    assert {path.name for path in SHIPPED} >= {"serve.yaml", "serve.a100.yaml", "serve.tp4.yaml"}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_every_shipped_configuration_is_valid(path: Path) -> None:
    config = read_config(path)

    assert list(config.applications) == ["tideserve"]
    assert config.port == 8000


def test_the_settings_are_read_and_the_document_is_kept_as_written(tmp_path: Path) -> None:
    document = {"applications": [application(models=[{"name": "a", "max_num_seqs": 7}])]}

    config = read(tmp_path, document)

    assert config.path == tmp_path / "serve.yaml"
    assert config.document == document
    assert config.applications["tide"].models[0].max_num_seqs == 7


def test_the_port_is_the_files_or_rays_default(tmp_path: Path) -> None:
    applications = [application()]

    assert read(tmp_path, {"applications": applications}).port == 8000
    assert read(tmp_path, {"applications": applications, "http_options": {"port": 9001}}).port == 9001
    assert read(tmp_path, {"applications": applications, "http_options": {"host": "::"}}).port == 8000


def test_other_applications_in_the_file_are_rays_business(tmp_path: Path) -> None:
    config = read(tmp_path, {"applications": [application("other", "elsewhere:app"), application("tide")]})

    assert list(config.applications) == ["tide"]


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"

    with pytest.raises(SettingsError) as caught:
        read_config(path)

    assert caught.value.problems == [f"{path}: No such file or directory"]


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="Is a directory"):
        read_config(tmp_path)


def test_what_is_not_yaml_is_told_with_its_place(tmp_path: Path) -> None:
    (line,) = problems(tmp_path, "applications: [\n  }")

    assert line.startswith(f"{tmp_path / 'serve.yaml'}: not YAML: ")
    assert "line 2" in line


@pytest.mark.parametrize("document", ["", "5", "[]", "{}", "applications: 5", "applications: {}"])
def test_what_is_no_serve_configuration_is_refused(tmp_path: Path, document: str) -> None:
    assert problems(tmp_path, document) == [
        f"{tmp_path / 'serve.yaml'}: must be a mapping with a list of `applications`"
    ]


def test_what_ray_does_not_know_outside_args_is_refused_by_key_and_value(tmp_path: Path) -> None:
    (line,) = problems(
        tmp_path, {"applications": [application()], "http_options": {"port": "eight thousand"}}
    )

    assert line.startswith("http_options.port = 'eight thousand': ")


def test_a_file_without_an_application_of_ours_is_refused(tmp_path: Path) -> None:
    assert problems(tmp_path, {"applications": [application("other", "elsewhere:app")]}) == [
        f"{tmp_path / 'serve.yaml'}: no application has import_path = 'serve_app.app:build'"
    ]
    assert len(problems(tmp_path, {"applications": []})) == 1


def test_problems_of_every_application_are_told_with_their_place_in_the_file(tmp_path: Path) -> None:
    document = {
        "applications": [
            application("one", models=[{"name": "a", "max_num_seqs": 0}]),
            application("two", models=[{"name": "b", "dtype": "int3"}]),
        ]
    }

    first, second = problems(tmp_path, document)

    assert first.startswith("applications[0].args.models[0].max_num_seqs = 0: ")
    assert first.endswith("greater than or equal to 1")
    assert second.startswith("applications[1].args.models[0].dtype = 'int3': ")


def test_an_application_without_a_name_has_rays_default_one(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(
        "applications: [{import_path: 'serve_app.app:build', args: {models: [{name: m, device: cpu}]}}]"
    )
    assert list(read_config(path).applications) == ["default"]


def test_a_file_that_is_not_utf8_is_a_settings_error(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_bytes(b"applications: [{name: \xe9}]")
    with pytest.raises(SettingsError, match="not UTF-8"):
        read_config(path)


def test_missing_args_are_named_once(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text("applications: [{name: a, import_path: 'serve_app.app:build'}]")
    with pytest.raises(SettingsError, match=r"applications\[0\]\.args = None: must be a mapping"):
        read_config(path)
