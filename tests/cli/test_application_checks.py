from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from serve_app import env
from serve_app.cli.application_checks import Cpus, check_application, check_room, local_cpus
from serve_app.settings.knobs import IngressKnobs, Knobs
from serve_app.settings.load import knob_defaults
from serve_app.settings.settings_error import SettingsError
from serve_app.settings.tree import AppSettings, ModelSettings

POLICY = "serve_app.controller.serve_policy:ServePolicy"
OURS = {"autoscaling_policy": {"policy_function": POLICY}}
ONE_MODEL = {"models": [{"name": "a"}]}


def problems(**app: Any) -> list[str]:
    """The problems of an application with one valid model and our policy, unless told."""
    with pytest.raises(SettingsError) as caught:
        check_application({"args": ONE_MODEL, **OURS, **app})
    return caught.value.problems


def with_knobs(**user_config: Any) -> list[dict[str, Any]]:
    return [{"name": "Ingress", "user_config": user_config}]


@pytest.mark.parametrize(
    ("deployments", "knobs", "ingress"),
    [
        ([], Knobs(), IngressKnobs()),
        ([{"name": "Ingress"}, {"name": "Engine-a", "max_ongoing_requests": 5}], Knobs(), IngressKnobs()),
        ([{"name": "Ingress", "user_config": None}], Knobs(), IngressKnobs()),
        (
            with_knobs(autoscaling={"a": {"max_replicas": 5}}, ingress={"max_replicas": 2}),
            Knobs(max_replicas=5),
            IngressKnobs(max_replicas=2),
        ),
    ],
)
def test_given_knobs_override_defaults(deployments: list[Any], knobs: Knobs, ingress: IngressKnobs) -> None:
    args = {"models": [{"name": "a"}, {"name": "b"}]}

    checked = check_application({"args": args, **OURS, "deployments": deployments})

    assert checked.knobs == {"a": knobs, "b": Knobs()}
    assert checked.ingress_knobs == ingress


def test_a_profile_s_knobs_are_defaults() -> None:
    args = {"profile": "lowest-cost", **ONE_MODEL}

    assert check_application({"args": args, **OURS}).knobs == knob_defaults(args)


OWNED = "the policy owns the replica counts; set min_replicas and max_replicas under Ingress's user_config"
PLACE = "deployments[0].user_config"


@pytest.mark.parametrize(
    ("app", "told"),
    [
        ({"args": None}, ["args = None: must be a mapping"]),
        ({"autoscaling_policy": {}}, [f"autoscaling_policy.policy_function = None: must be {POLICY!r}"]),
        (
            {"autoscaling_policy": {"policy_function": "elsewhere:Policy"}},
            [f"autoscaling_policy.policy_function = 'elsewhere:Policy': must be {POLICY!r}"],
        ),
        (
            {"autoscaling_policy": {"policy_function": POLICY, "policy_kwargs": {"max_replicas": 3}}},
            ["autoscaling_policy.policy_kwargs = {'max_replicas': 3}: the policy takes no arguments"],
        ),
        ({"external_scaler_enabled": True}, ["external_scaler_enabled = True: must be false"]),
        (
            {"deployments": [{"name": "ingress", "user_config": {}}]},
            [
                "deployments[0].name = 'ingress': no such deployment; "
                "this application has 'Ingress', 'Engine-a'"
            ],
        ),
        (
            {"deployments": [{"name": "Ingress"}, {"name": "Ingress"}]},
            ["deployments[1].name = 'Ingress': given twice; make it one entry"],
        ),
        (
            {"deployments": [{"name": "Ingress", "num_replicas": "auto"}]},
            [f"deployments[0].num_replicas = 'auto': {OWNED}.ingress"],
        ),
        (
            {"deployments": [{"name": "Engine-a", "autoscaling_config": {"max_replicas": 3}}]},
            [f"deployments[0].autoscaling_config = {{'max_replicas': 3}}: {OWNED}.autoscaling.<model name>"],
        ),
        (
            {"deployments": with_knobs(autoscaling={"a": {"max_replicas": 0, "ttft_p95": 1}, "z": {}})},
            [
                f"{PLACE}.autoscaling['a'].max_replicas = 0: input should be greater than or equal to 1",
                f"{PLACE}.autoscaling['a'].ttft_p95 = 1: no such setting",
                f"{PLACE}.autoscaling['z']: no such model; this application has 'a'",
            ],
        ),
        (
            {"deployments": with_knobs(ingress={"min_replicas": 0})},
            [f"{PLACE}.ingress.min_replicas = 0: input should be greater than or equal to 1"],
        ),
        # The defaults of invalid settings are unknown: a profile may raise max_replicas above 7.
        (
            {
                "args": {"models": [{"name": "a", "dtype": "int3"}]},
                "deployments": with_knobs(autoscaling={"a": {"min_replicas": 7}}),
            },
            ["args.models[0].dtype = 'int3': "],
        ),
        (
            {
                "args": {"models": [{"name": "a", "dtype": "int3"}]},
                "autoscaling_policy": {"policy_function": "x:y"},
                "deployments": [
                    {**with_knobs(autoscaling={"a": {"headroom": -1}})[0], "num_replicas": 2},
                    {"name": "Engine-a", "autoscaling_config": {}},
                ],
            },
            [
                "args.models[0].dtype = ",
                "autoscaling_policy.policy_function = ",
                "deployments[0].num_replicas = ",
                "deployments[1].autoscaling_config = ",
                f"{PLACE}.autoscaling['a'].headroom = ",
            ],
        ),
    ],
)
def test_every_problem_is_told_at_once(app: dict[str, Any], told: list[str]) -> None:
    found = problems(**app)

    assert [line[: len(start)] for line, start in zip(found, told, strict=True)] == told


def test_missing_policy_error_shows_the_line_to_add() -> None:
    (line,) = problems(autoscaling_policy=None)

    assert line.startswith("autoscaling_policy: required, and not given; add ")
    assert yaml.safe_load(line.split("`")[1]) == OURS


@pytest.mark.parametrize("models", [None, 5, [], [5], [{"name": 5}]])
def test_args_of_any_shape_are_a_settings_error(models: object) -> None:
    found = problems(args={"models": models}, deployments=with_knobs(autoscaling={"a": {}}))

    assert all(line.startswith("args") for line in found)


def room(
    *models: tuple[float, int],
    cpus: float = 2.0,
    ingresses: int = 4,
    each: float = 0.5,
    certain: bool = True,
    **more: Any,
) -> list[str]:
    """The problems of models that take so many CPUs and have so many `min_replicas`."""
    given = {f"m{number}": model for number, model in enumerate(models)}
    made = tuple(
        ModelSettings(**{"name": name, "device": "cpu", "cpus_per_replica": takes, **more})
        for name, (takes, _) in given.items()
    )
    settings = AppSettings(models=made, ingress={"cpus_per_replica": each})
    knobs = {name: Knobs(min_replicas=least, max_replicas=8) for name, (_, least) in given.items()}
    return check_room(settings, knobs, IngressKnobs(max_replicas=ingresses), Cpus(cpus, certain), "ingress")


@pytest.mark.parametrize(
    ("models", "options", "fits"),
    [
        ([(0.4, 0)], {"ingresses": 3}, True),
        ([(0.4, 0)], {"ingresses": 4}, False),
        ([(0.5, 1)], {"ingresses": 3}, True),
        ([(0.4, 3)], {"ingresses": 1}, True),
        ([(0.4, 3)], {"ingresses": 2}, False),
        ([(0.5, 1), (0.5, 0)], {"ingresses": 2}, True),
        ([(0.5, 1), (0.5, 0)], {"ingresses": 3}, False),
        ([(1.0, 0), (1.0, 0), (1.0, 0)], {"ingresses": 2}, True),  # one at a time
        ([(2.0, 0)], {"each": 0.0}, True),
        ([(0.1, 3)], {"cpus": 0.6, "ingresses": 3, "each": 0.1}, True),  # fractions that fill the CPUs
        ([(4.0, 0)], {"resources": {"l4:replicas": 1.0}}, True),  # these nodes are unknown
        ([(4.0, 0)], {"certain": False, "device": "gpu"}, True),
        ([(4.0, 0)], {"certain": True, "device": "gpu"}, False),
        ([(0.4, 0)], {"certain": False}, False),  # a file without GPUs is for this machine
    ],
)
def test_largest_ingress_leaves_room_for_first_replicas(
    models: list[tuple[float, int]], options: Mapping[str, Any], fits: bool
) -> None:
    assert (room(*models, **options) == []) is fits


def test_lack_of_room_names_key_value_and_bound() -> None:
    (problem,) = room((0.4, 0))
    assert problem.startswith("ingress.max_replicas = 4: the ingress may take 2 of 2 CPUs ")
    assert "ingress.cpus_per_replica = 0.5" in problem
    assert "model 'm0'" in problem
    assert problem.endswith("must be at most 3")

    (problem,) = room((2.0, 0), ingresses=1)
    assert "no ingress replica fits" in problem


def test_the_cpus_here_are_what_ray_takes_them_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.RAY_RESOURCES, '{"CPU": 2, "GPU": 1}')
    assert local_cpus() == 2.0

    for wrong in ('{"CPU": 1, "CPU": 2}', "[]", '{"CPU": "x"}', "{", "[" * 100_000):
        monkeypatch.setenv(env.RAY_RESOURCES, wrong)
        with pytest.raises(SettingsError, match="RAY_OVERRIDE_RESOURCES = "):
            local_cpus()
    monkeypatch.delenv(env.RAY_RESOURCES)
    assert local_cpus() >= 1.0
