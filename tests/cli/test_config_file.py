import contextlib
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.serve._private.haproxy import HAProxyManager

from serve_app.cli.config_file import ConfigFile, read_config
from serve_app.settings.settings_error import SettingsError

REPOSITORY = Path(__file__).parents[2]
SHIPPED = sorted((REPOSITORY / "config").glob("*.yaml"))
SERVED = yaml.safe_load((REPOSITORY / "config" / "serve.yaml").read_text())
POLICY = "serve_app.controller.serve_policy:ServePolicy"


def application(name: str = "tide", import_path: str = "serve_app.app:build", **args: Any) -> dict[str, Any]:
    return {
        "name": name,
        "route_prefix": f"/{name}",
        "import_path": import_path,
        "autoscaling_policy": {"policy_function": POLICY},
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


def places(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path of every value in a document."""
    yield path
    if isinstance(value, dict | list):
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(entry, (*path, key))


ANYTHING = [None, 5, -1, 1.5, float("nan"), 10**30, True, "x", "", [], [1], {}, {"a": 1}]


@pytest.mark.parametrize("place", list(places(SERVED)), ids=lambda place: ".".join(map(str, place)) or "all")
def test_any_value_is_accepted_or_refused_in_words(tmp_path: Path, place: tuple[str | int, ...]) -> None:
    for value in ANYTHING:
        document = {"all": copy.deepcopy(SERVED)}
        holder: Any = document
        *outer, last = ("all", *place)
        for key in outer:
            holder = holder[key]
        holder[last] = value
        with contextlib.suppress(SettingsError):
            read(tmp_path, document["all"])


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_configurations_are_valid_for_this_machine_alone(path: Path) -> None:
    config = read_config(path)

    assert list(config.applications) == ["tideserve"]
    assert (config.host, config.port) == ("127.0.0.1", 8000)


def test_document_is_kept_as_written(tmp_path: Path) -> None:
    assert {path.name for path in SHIPPED} >= {"serve.yaml", "serve.a100.yaml", "serve.tp4.yaml"}
    unnamed = application(models=[{"name": "a", "max_num_seqs": 7}])
    del unnamed["name"]
    document = {"applications": [application("other", "elsewhere:app"), unnamed]}

    config = read(tmp_path, document)

    assert (config.path, config.document) == (tmp_path / "serve.yaml", document)
    assert list(config.applications) == ["default"]  # Ray's name
    assert config.applications["default"].settings.models[0].max_num_seqs == 7


@pytest.mark.parametrize(
    ("options", "host", "port"),
    [
        ({}, "127.0.0.1", 8000),
        ({"port": 9001}, "127.0.0.1", 9001),
        ({"host": "::"}, "::", 8000),
    ],
)
def test_host_and_port_have_defaults(tmp_path: Path, options: Any, host: str, port: int) -> None:
    config = read(tmp_path, {"applications": [application()], "http_options": options})

    assert (config.host, config.port) == (host, port)


def test_applications_without_keys_are_known(tmp_path: Path) -> None:
    models = [{"name": "a"}]
    keyed = application("keyed", models=models, http={"api_keys_file": "/run/keys"})

    assert read(tmp_path, {"applications": [application("open", models=models), keyed]}).keyless == ["open"]


def test_forked_are_the_models_whose_environment_the_file_tells(tmp_path: Path) -> None:
    def app(name: str, **args: Any) -> dict[str, Any]:
        return application(name, models=[{"name": name, "device": "cpu"}], **args)

    elsewhere = {**app("elsewhere"), "runtime_env": {"env_vars": {"A": "1"}}}
    document = {"applications": [app("here"), app("cold", zygote=False), elsewhere]}

    assert [model.name for model in read(tmp_path, document).forked] == ["here"]


NO_LIST = "{path}: must be a mapping with a list of `applications`"
OPTIONS = "applications: [{import_path: 'serve_app.app:build'}]\nhttp_options: "
PORT = "http_options.port = {}: must be a whole number from 1 to 65535"


@pytest.mark.parametrize(
    ("text", "start"),
    [
        *((text, NO_LIST) for text in ("", "5", "[]", "{}", "applications: 5", "applications: {}")),
        ("applications: [\n  }", "{path}:2: not YAML: "),
        ("applications: []", "{path}: no application has import_path = 'serve_app.app:build'"),
        (
            "applications: [{name: a, import_path: 'elsewhere:app'}]",
            "{path}: no application has import_path = 'serve_app.app:build'",
        ),
        (
            "applications: [{name: a, deployments: [{name: b}, 5]}]",
            "applications[0].deployments[1] = 5: must be",
        ),
        (f"{OPTIONS}{{port: 0}}", PORT.format(0)),
        (f"{OPTIONS}{{port: 65536}}", PORT.format(65536)),
        (f"{OPTIONS}{{port: true}}", PORT.format(True)),
        (f"{OPTIONS}{{port: eight}}", "http_options.port = 'eight': "),
        (f"{OPTIONS}{{request_timeout_s: 30}}", "http_options.request_timeout_s = 30: must be left out"),
    ],
)
def test_a_file_ray_serve_cannot_use_is_refused(tmp_path: Path, text: str, start: str) -> None:
    (line,) = problems(tmp_path, text)

    assert line.startswith(start.format(path=tmp_path / "serve.yaml"))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"applications: [{name: \xe9}]")
    for name, words in (
        ("none", "No such file or directory"),
        (".", "Is a directory"),
        ("latin", "not UTF-8"),
    ):
        with pytest.raises(SettingsError, match=words) as caught:
            read_config(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)


def test_a_knob_given_twice_is_told_with_both_lines(tmp_path: Path) -> None:
    text = (REPOSITORY / "config" / "serve.yaml").read_text()
    known = next(line for line in text.splitlines() if "min_replicas:" in line)
    first = text.splitlines().index(known) + 1

    (line,) = problems(tmp_path, text.replace(known, f"{known}\n{known}", 1))

    place = f"{tmp_path / 'serve.yaml'}:{first + 1}: applications[0].deployments[0].user_config."
    assert line.startswith(place)
    assert line.endswith(f"min_replicas: given twice; line {first} has it first")


@pytest.mark.parametrize("name", ["a b", "team/a", "a#1", "é", "a\nb"])
def test_names_that_haproxy_cannot_have_are_refused(tmp_path: Path, name: str) -> None:
    one, two = application("a_b", models=[{"name": "a"}]), application(name, models=[{"name": "b"}])

    (line,) = problems(tmp_path, {"applications": [one, two]})

    assert line.startswith(f"applications[1].name = {name!r}: must have only letters, digits, ")
    assert HAProxyManager.__ray_metadata__.modified_class.get_safe_name(name) != name


def test_problems_of_all_applications_have_paths(tmp_path: Path) -> None:
    one = application("one", models=[{"name": "a", "max_num_seqs": 0}])
    two = application("two", models=[{"name": "b", "dtype": "int3"}])

    first, second = problems(tmp_path, {"applications": [one, two]})

    assert first.startswith("applications[0].args.models[0].max_num_seqs = 0: ")
    assert second.startswith("applications[1].args.models[0].dtype = 'int3': ")
