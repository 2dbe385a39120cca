from __future__ import annotations

import pytest

from serve_app.settings import SettingsError, load_settings


@pytest.mark.parametrize("args", [None, [], "models", 5])
def test_arguments_that_are_no_mapping_are_refused(args: object) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(args)

    assert caught.value.problems == [f"args = {args!r}: must be a mapping with at least `models`"]


def test_what_is_not_given_takes_its_default() -> None:
    settings = load_settings({"models": [{"name": "a"}]})

    model = settings.models[0]
    assert (model.model, model.device, model.max_num_seqs) == ("embedded", "gpu", 256)
    assert settings.http.max_body_bytes == 8 << 20
    assert settings.ingress.data_plane == "relay"


def test_a_profile_is_laid_under_the_models() -> None:
    settings = load_settings(
        {"profile": "lowest-latency", "models": [{"name": "a"}, {"name": "b", "max_num_seqs": 7}]}
    )

    assert [model.max_num_seqs for model in settings.models] == [32, 7]


def test_pass_through_arguments_are_checked_in_every_model() -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(
            {
                "models": [
                    {"name": "a", "engine_args": {"seed": 1}},
                    {"name": "b", "engine_args": {"dtype": "auto"}},
                    {"name": "c", "engine_args": {"model": "x"}},
                ]
            }
        )

    assert [line.partition(" ")[0] for line in caught.value.problems] == [
        "models[1].engine_args.dtype",
        "models[2].engine_args.model",
    ]


def test_valid_pass_through_arguments_are_kept_as_written() -> None:
    settings = load_settings({"models": [{"name": "a", "engine_args": {"seed": 7, "block_size": 32}}]})

    assert settings.models[0].engine_args == {"seed": 7, "block_size": 32}


@pytest.mark.parametrize("key", ["cpus_per_replica", "drain_timeout_s", "gpu_memory_utilization"])
def test_infinity_is_not_a_setting(key: str) -> None:
    model = {"name": "m", "device": "cpu", key: float("inf")}
    with pytest.raises(SettingsError, match=rf"models\[0\]\.{key} = inf"):
        load_settings({"models": [model]})


def test_replica_counts_of_an_older_configuration_come_with_where_they_are_now() -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({"models": [{"name": "a", "scaling": {"max_replicas": 3}}, {"name": "b"}]})

    (line,) = caught.value.problems
    assert line.startswith("models[0] = {'name': 'a', 'scaling': {'max_replicas': 3}}: scaling: ")
    assert "user_config" in line
