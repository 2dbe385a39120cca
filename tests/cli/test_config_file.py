import contextlib
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from serve_app.cli.config_file import ConfigFile, read_config
from serve_app.settings import SettingsError, knob_defaults
from serve_app.settings.knobs import IngressKnobs, Knobs

REPOSITORY = Path(__file__).parents[2]
SHIPPED = sorted((REPOSITORY / "config").glob("*.yaml"))
OURS = "serve_app.app:build"
POLICY = "serve_app.controller.serve_policy:ServePolicy"


def application(name: str = "tide", import_path: str = OURS, **args: Any) -> dict[str, Any]:
    return {
        "name": name,
        "route_prefix": f"/{name}",
        "import_path": import_path,
        "autoscaling_policy": {"policy_function": POLICY},
        "args": args or {"models": [{"name": "a"}]},
    }


def with_deployments(*deployments: dict[str, Any], **args: Any) -> dict[str, Any]:
    return {"applications": [{**application(**args), "deployments": list(deployments)}]}


def with_knobs(**user_config: Any) -> dict[str, Any]:
    return with_deployments({"name": "Ingress", "user_config": user_config})


def read(folder: Path, document: object) -> ConfigFile:
    path = folder / "serve.yaml"
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    return read_config(path)


def problems(folder: Path, document: object) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        read(folder, document)
    return caught.value.problems


@pytest.mark.parametrize("port", [0, 65536, -1, True])
def test_a_port_that_is_none_is_named_with_its_bounds(tmp_path: Path, port: object) -> None:
    document = {**with_deployments(), "http_options": {"port": port}}

    assert problems(tmp_path, document) == [
        f"http_options.port = {port!r}: must be a whole number from 1 to 65535"
    ]


def test_a_timeout_at_which_ray_cuts_streams_is_refused(tmp_path: Path) -> None:
    document = {**with_deployments(), "http_options": {"request_timeout_s": 30}}

    (line,) = problems(tmp_path, document)

    assert line.startswith("http_options.request_timeout_s = 30")
    assert "X-Request-Timeout-Seconds" in line


def test_an_entry_of_deployments_that_is_no_mapping_is_named(tmp_path: Path) -> None:
    document = with_deployments({"name": "Ingress"})
    document["applications"][0]["deployments"].append(5)

    assert problems(tmp_path, document) == ["applications[0].deployments[1] = 5: must be a mapping"]


def places(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path of every value in a document."""
    yield path
    if isinstance(value, dict | list):
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(entry, (*path, key))


SERVED = yaml.safe_load((REPOSITORY / "config" / "serve.yaml").read_text())
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


def test_there_are_configurations_to_check() -> None:
    assert {path.name for path in SHIPPED} >= {"serve.yaml", "serve.a100.yaml", "serve.tp4.yaml"}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_every_shipped_configuration_is_valid(path: Path) -> None:
    config = read_config(path)

    assert list(config.applications) == ["tideserve"]
    assert config.port == 8000


def test_document_is_kept_as_written(tmp_path: Path) -> None:
    document = {"applications": [application(models=[{"name": "a", "max_num_seqs": 7}])]}

    config = read(tmp_path, document)

    assert config.path == tmp_path / "serve.yaml"
    assert config.document == document
    assert config.applications["tide"].settings.models[0].max_num_seqs == 7


def test_the_port_is_the_files_or_rays_default(tmp_path: Path) -> None:
    applications = [application()]

    assert read(tmp_path, {"applications": applications}).port == 8000
    assert read(tmp_path, {"applications": applications, "http_options": {"port": 9001}}).port == 9001
    assert read(tmp_path, {"applications": applications, "http_options": {"host": "::"}}).port == 8000


@pytest.mark.parametrize(
    ("options", "host"), [({"host": "::"}, "::"), ({"port": 8000}, "127.0.0.1"), (None, "127.0.0.1")]
)
def test_the_host_is_the_files_or_this_machine(tmp_path: Path, options: Any, host: str) -> None:
    document = {"applications": [application()], "http_options": options or {}}

    assert read(tmp_path, document).host == host


def test_applications_without_keys_are_known(tmp_path: Path) -> None:
    models = [{"name": "a"}]
    keyed = application("keyed", models=models, http={"api_keys_file": "/run/keys"})

    assert read(tmp_path, {"applications": [application("open", models=models), keyed]}).keyless == ["open"]


def test_other_applications_in_the_file_are_rays_business(tmp_path: Path) -> None:
    config = read(tmp_path, {"applications": [application("other", "elsewhere:app"), application("tide")]})

    assert list(config.applications) == ["tide"]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=f"{tmp_path}/none.yaml: No such file or directory"):
        read_config(tmp_path / "none.yaml")
    with pytest.raises(SettingsError, match="Is a directory"):
        read_config(tmp_path)
    (tmp_path / "latin").write_bytes(b"applications: [{name: \xe9}]")
    with pytest.raises(SettingsError, match="not UTF-8"):
        read_config(tmp_path / "latin")


def test_what_is_not_yaml_is_told_with_its_place(tmp_path: Path) -> None:
    (line,) = problems(tmp_path, "applications: [\n  }")

    assert line.startswith(f"{tmp_path / 'serve.yaml'}:2: not YAML: ")


def test_a_knob_given_twice_is_told_with_both_lines(tmp_path: Path) -> None:
    text = (REPOSITORY / "config" / "serve.yaml").read_text()
    known = next(line for line in text.splitlines() if "min_replicas:" in line)
    first = text.splitlines().index(known) + 1

    (line,) = problems(tmp_path, text.replace(known, f"{known}\n{known}", 1))

    assert line.startswith(
        f"{tmp_path / 'serve.yaml'}:{first + 1}: applications[0].deployments[0].user_config."
    )
    assert line.endswith(f"min_replicas: given twice; line {first} has it first")


@pytest.mark.parametrize("document", ["", "5", "[]", "{}", "applications: 5", "applications: {}"])
def test_what_is_no_serve_configuration_is_refused(tmp_path: Path, document: str) -> None:
    assert problems(tmp_path, document) == [
        f"{tmp_path / 'serve.yaml'}: must be a mapping with a list of `applications`"
    ]


def test_unknown_key_outside_args_is_refused(tmp_path: Path) -> None:
    (line,) = problems(
        tmp_path, {"applications": [application()], "http_options": {"port": "eight thousand"}}
    )

    assert line.startswith("http_options.port = 'eight thousand': ")


def test_a_file_without_an_application_of_ours_is_refused(tmp_path: Path) -> None:
    assert problems(tmp_path, {"applications": [application("other", "elsewhere:app")]}) == [
        f"{tmp_path / 'serve.yaml'}: no application has import_path = 'serve_app.app:build'"
    ]
    assert len(problems(tmp_path, {"applications": []})) == 1


def test_problems_of_all_applications_have_paths(tmp_path: Path) -> None:
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
    app = application()
    del app["name"]

    assert list(read(tmp_path, {"applications": [app]}).applications) == ["default"]


def test_missing_args_are_named_once(tmp_path: Path) -> None:
    first, second = problems(tmp_path, {"applications": [{"name": "a", "import_path": OURS}]})

    assert first.startswith("applications[0].args = None: must be a mapping")
    assert second.startswith("applications[0].autoscaling_policy: required, and not given")


def test_given_knobs_override_defaults(tmp_path: Path) -> None:
    document = with_deployments(
        {
            "name": "Ingress",
            "user_config": {"autoscaling": {"a": {"max_replicas": 5}}, "ingress": {"max_replicas": 2}},
        },
        models=[{"name": "a"}, {"name": "b"}],
    )

    config = read(tmp_path, document)

    assert config.applications["tide"].knobs == {"a": Knobs(max_replicas=5), "b": Knobs()}
    assert config.applications["tide"].ingress_knobs == IngressKnobs(max_replicas=2)


def test_without_a_user_config_every_knob_is_its_default(tmp_path: Path) -> None:
    for deployments in ([], [{"name": "Ingress"}], [{"name": "Ingress", "user_config": None}]):
        config = read(tmp_path, with_deployments(*deployments))

        assert config.applications["tide"].knobs == {"a": Knobs()}
        assert config.applications["tide"].ingress_knobs == IngressKnobs()


def test_a_profile_s_knobs_are_defaults(tmp_path: Path) -> None:
    args = {"profile": "lowest-cost", "models": [{"name": "a"}]}

    assert read(tmp_path, with_deployments(**args)).applications["tide"].knobs == knob_defaults(args)


def test_knobs_out_of_bounds_have_paths(tmp_path: Path) -> None:
    document = with_knobs(
        autoscaling={"a": {"max_replicas": 0, "ttft_p95": 1}, "z": {}}, ingress={"min_replicas": 0}
    )

    assert problems(tmp_path, document) == [
        "applications[0].deployments[0].user_config.ingress.min_replicas = 0: "
        "input should be greater than or equal to 1"
    ]

    del document["applications"][0]["deployments"][0]["user_config"]["ingress"]
    place = "applications[0].deployments[0].user_config.autoscaling['a']"
    assert problems(tmp_path, document) == [
        f"{place}.max_replicas = 0: input should be greater than or equal to 1",
        f"{place}.ttft_p95 = 1: no such setting",
        "applications[0].deployments[0].user_config.autoscaling['z']: no such model; "
        "this application has 'a'",
    ]


def test_missing_policy_error_shows_the_line_to_add(tmp_path: Path) -> None:
    app = application()
    del app["autoscaling_policy"]

    assert problems(tmp_path, {"applications": [app]}) == [
        "applications[0].autoscaling_policy: required, and not given; add "
        f"`autoscaling_policy: {{policy_function: {POLICY}}}` beside `import_path`: "
        "without it Ray Serve's default policy would decide, and the knobs would change nothing"
    ]
    assert yaml.safe_load(f"autoscaling_policy: {{policy_function: {POLICY}}}") == {
        "autoscaling_policy": {"policy_function": POLICY}
    }


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"autoscaling_policy": {}}, f"autoscaling_policy.policy_function = None: must be {POLICY!r}"),
        (
            {"autoscaling_policy": {"policy_function": "elsewhere:Policy"}},
            f"autoscaling_policy.policy_function = 'elsewhere:Policy': must be {POLICY!r}",
        ),
        (
            {"autoscaling_policy": {"policy_function": POLICY, "policy_kwargs": {"max_replicas": 3}}},
            "autoscaling_policy.policy_kwargs = {'max_replicas': 3}: the policy takes no arguments",
        ),
        ({"external_scaler_enabled": True}, "external_scaler_enabled = True: must be false"),
        (
            {"deployments": [{"name": "ingress", "user_config": {}}]},
            "deployments[0].name = 'ingress': no such deployment; this application has 'Ingress', 'Engine-a'",
        ),
        (
            {"deployments": [{"name": "Ingress"}, {"name": "Ingress"}]},
            "deployments[1].name = 'Ingress': given twice; make it one entry",
        ),
    ],
)
def test_what_an_application_must_not_have_is_refused(
    tmp_path: Path, given: dict[str, Any], told: str
) -> None:
    (line,) = problems(tmp_path, {"applications": [{**application(), **given}]})

    assert line.startswith(f"applications[0].{told}")


@pytest.mark.parametrize(
    ("name", "place"),
    [("Ingress", "user_config.ingress"), ("Engine-a", "user_config.autoscaling.<model name>")],
)
@pytest.mark.parametrize(
    ("key", "value"),
    [("num_replicas", 2), ("num_replicas", "auto"), ("autoscaling_config", {"max_replicas": 3})],
)
def test_replica_counts_of_our_deployments_belong_to_the_policy(
    tmp_path: Path, name: str, place: str, key: str, value: object
) -> None:
    assert problems(tmp_path, with_deployments({"name": name, key: value})) == [
        f"applications[0].deployments[0].{key} = {value!r}: the policy owns the replica counts; "
        f"set min_replicas and max_replicas under Ingress's {place}"
    ]


def test_other_options_of_our_deployments_are_the_operators(tmp_path: Path) -> None:
    document = with_deployments({"name": "Engine-a", "max_ongoing_requests": 5}, {"name": "Ingress"})

    assert read(tmp_path, document).applications["tide"].settings.models[0].name == "a"


def test_former_scaling_key_is_refused_with_its_replacement(tmp_path: Path) -> None:
    args = {"models": [{"name": "a", "scaling": {"max_replicas": 3}, "max_num_seqs": 0}]}

    moved, bound = problems(tmp_path, with_deployments(**args))

    assert moved.startswith("applications[0].args.models[0].scaling = {'max_replicas': 3}: ")
    advice = moved.partition("under ")[2]
    assert yaml.safe_load(advice) == {
        "deployments": [
            {
                "name": "Ingress",
                "user_config": {"autoscaling": {"a": {"min_replicas": "...", "max_replicas": "..."}}},
            }
        ]
    }
    assert bound.startswith("applications[0].args.models[0].max_num_seqs = 0: ")


def test_every_problem_of_an_application_is_told_at_once(tmp_path: Path) -> None:
    app = application(models=[{"name": "a", "dtype": "int3"}])
    app["autoscaling_policy"] = {"policy_function": "x:y"}
    app["deployments"] = [
        {"name": "Ingress", "num_replicas": 2, "user_config": {"autoscaling": {"a": {"headroom": -1}}}},
        {"name": "Engine-a", "autoscaling_config": {}},
    ]

    lines = problems(tmp_path, {"applications": [app]})

    assert [line.partition(" = ")[0].removeprefix("applications[0].") for line in lines] == [
        "args.models[0].dtype",
        "autoscaling_policy.policy_function",
        "deployments[0].num_replicas",
        "deployments[1].autoscaling_config",
        "deployments[0].user_config.autoscaling['a'].headroom",
    ]


def test_with_invalid_args_knobs_are_checked_without_false_alarms(tmp_path: Path) -> None:
    """What the defaults would be is not known then: a profile may raise max_replicas above this."""
    app = application(models=[{"name": "a", "dtype": "int3"}])
    app["deployments"] = [{"name": "Ingress", "user_config": {"autoscaling": {"a": {"min_replicas": 7}}}}]

    (line,) = problems(tmp_path, {"applications": [app]})

    assert "dtype" in line


@pytest.mark.parametrize("models", [None, 5, [], [5], [{"name": 5}]])
def test_args_of_any_shape_are_a_settings_error(tmp_path: Path, models: object) -> None:
    app = {**application(), "args": {"models": models}}
    app["deployments"] = [{"name": "Ingress", "user_config": {"autoscaling": {"a": {}}}}]

    assert all(
        line.startswith("applications[0].args") for line in problems(tmp_path, {"applications": [app]})
    )


def test_forked_are_the_models_whose_environment_the_file_tells(tmp_path: Path) -> None:
    def app(name: str, zygote: bool = True, **more: object) -> dict[str, object]:
        models = [{"name": name, "model": "embedded", "device": "cpu"}]
        policy = {"policy_function": "serve_app.controller.serve_policy:ServePolicy"}
        whole = {
            "import_path": "serve_app.app:build",
            "autoscaling_policy": policy,
            "route_prefix": f"/{name}",
        }
        return {**whole, "name": name, "args": {"models": models, "zygote": zygote}, **more}

    ours = [app("here"), app("cold", zygote=False), app("elsewhere", runtime_env={"env_vars": {"A": "1"}})]
    config = tmp_path / "serve.yaml"
    config.write_text(
        yaml.safe_dump({"applications": [*ours, {"import_path": "somebody:app", "name": "other"}]})
    )

    assert [model.name for model in read_config(config).forked] == ["here"]
