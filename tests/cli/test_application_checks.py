from typing import Any

import pytest

from serve_app import env
from serve_app.cli.application_checks import Cpus, check_room, local_cpus
from serve_app.settings import AppSettings, ModelSettings, SettingsError
from serve_app.settings.knobs import IngressKnobs, Knobs


def problems(
    *models: tuple[float, int],
    cpus: float = 2.0,
    ingresses: int = 4,
    each: float = 0.5,
    certain: bool = True,
    **more: Any,
) -> list[str]:
    """Of models that take so many CPUs and have so many `min_replicas`."""
    names = [f"m{number}" for number in range(len(models))]
    settings = AppSettings(
        models=tuple(
            ModelSettings(**{"name": name, "device": "cpu", "cpus_per_replica": takes, **more})
            for name, (takes, _) in zip(names, models, strict=True)
        ),
        ingress={"cpus_per_replica": each},
    )
    knobs = {
        name: Knobs(min_replicas=least, max_replicas=8)
        for name, (_, least) in zip(names, models, strict=True)
    }
    return check_room(settings, knobs, IngressKnobs(max_replicas=ingresses), Cpus(cpus, certain), "ingress")


@pytest.mark.parametrize(
    ("models", "ingresses", "fits"),
    [
        ([(0.4, 0)], 3, True),
        ([(0.4, 0)], 4, False),
        ([(0.5, 1)], 3, True),
        ([(0.4, 3)], 1, True),
        ([(0.4, 3)], 2, False),
        ([(0.5, 1), (0.5, 0)], 2, True),
        ([(0.5, 1), (0.5, 0)], 3, False),
        ([(1.0, 0), (1.0, 0), (1.0, 0)], 2, True),  # one at a time
    ],
)
def test_largest_ingress_leaves_room_for_first_replicas(
    models: list[tuple[float, int]], ingresses: int, fits: bool
) -> None:
    assert (problems(*models, ingresses=ingresses) == []) is fits


def test_the_error_names_the_key_its_value_and_the_bound() -> None:
    (problem,) = problems((0.4, 0))

    assert problem.startswith("ingress.max_replicas = 4: the ingress may take 2 of 2 CPUs ")
    assert "ingress.cpus_per_replica = 0.5" in problem
    assert "model 'm0'" in problem
    assert problem.endswith("must be at most 3")


def test_where_no_ingress_replica_fits_no_bound_helps() -> None:
    (problem,) = problems((2.0, 0), ingresses=1)

    assert "no ingress replica fits" in problem


def test_an_ingress_that_takes_no_cpus_takes_no_room() -> None:
    assert problems((2.0, 0), each=0.0) == []


def test_fractions_that_fill_the_cpus_fit() -> None:
    assert problems((0.1, 3), cpus=0.6, ingresses=3, each=0.1) == []


def test_of_nodes_named_by_custom_resources_nothing_is_known() -> None:
    assert problems((4.0, 0), resources={"l4:replicas": 1.0}) == []


def test_gpu_file_is_checked_only_with_certain_cpus() -> None:
    gpu = {"device": "gpu"}

    assert problems((4.0, 0), certain=False, **gpu) == []
    assert problems((4.0, 0), certain=True, **gpu) != []


def test_a_file_without_gpus_is_for_this_machine() -> None:
    assert problems((0.4, 0), certain=False) != []


def test_the_cpus_here_are_what_ray_takes_them_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.RAY_RESOURCES, '{"CPU": 2, "GPU": 1}')
    assert local_cpus() == 2.0

    for wrong in ('{"CPU": 1, "CPU": 2}', "[]", '{"CPU": "x"}', "{"):
        monkeypatch.setenv(env.RAY_RESOURCES, wrong)
        with pytest.raises(SettingsError, match="RAY_OVERRIDE_RESOURCES = "):
            local_cpus()
    monkeypatch.delenv(env.RAY_RESOURCES)
    assert local_cpus() >= 1.0
