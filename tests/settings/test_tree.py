from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from serve_app.settings import AppSettings, HttpSettings, IngressSettings, ModelSettings, ScalingSettings

NAN, INF = float("nan"), float("inf")


def message(error: pytest.ExceptionInfo[ValidationError]) -> str:
    (item,) = error.value.errors()
    return item["msg"]


@pytest.mark.parametrize(
    ("settings", "key", "value"),
    [
        (ScalingSettings, "min_replicas", -1),
        (ScalingSettings, "min_replicas", 10_001),
        (ScalingSettings, "max_replicas", 0),
        (ScalingSettings, "max_replicas", 10_001),
        (ScalingSettings, "max_replicas", 1.5),
        (ScalingSettings, "target_ongoing_requests", 0),
        (ScalingSettings, "target_ongoing_requests", NAN),
        (ScalingSettings, "upscale_delay_s", -0.1),
        (ScalingSettings, "downscale_delay_s", -0.1),
        (HttpSettings, "max_body_bytes", 1023),
        (HttpSettings, "max_body_bytes", (1 << 30) + 1),
        (IngressSettings, "replicas", 0),
        (IngressSettings, "replicas", 1001),
        (IngressSettings, "cpus_per_replica", -0.5),
        (IngressSettings, "max_ongoing_requests", 0),
        (IngressSettings, "data_plane", "carrier-pigeon"),
        (IngressSettings, "replica_wait_timeout_s", 0),
    ],
)
def test_a_value_out_of_its_range_is_refused(settings: type[Any], key: str, value: object) -> None:
    with pytest.raises(ValidationError) as error:
        settings.model_validate({key: value})

    assert [item["loc"] for item in error.value.errors()] == [(key,)]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model", ""),
        ("device", "tpu"),
        ("cpus_per_replica", -1),
        ("placement_group_strategy", "TIGHT"),
        ("dtype", "int3"),
        ("quantization", "zip"),
        ("tensor_parallel_size", 0),
        ("tensor_parallel_size", 1025),
        ("gpu_memory_utilization", 0),
        ("gpu_memory_utilization", 1.01),
        ("gpu_memory_utilization", NAN),
        ("kv_cache_memory_bytes", (1 << 20) - 1),
        ("max_model_len", 15),
        ("max_num_batched_tokens", 15),
        ("max_num_seqs", 0),
        ("scheduling_policy", "random"),
        ("task", "dance"),
        ("engine_args", ["enforce_eager"]),
        ("env", {"OMP_NUM_THREADS": 1}),
        ("max_ongoing_requests", 0),
        ("max_sequences_per_request", 0),
        ("max_sequences_per_request", 10_001),
        ("drain_timeout_s", -1),
        ("max_queued_requests", 0),
    ],
)
def test_a_model_value_out_of_its_range_is_refused(key: str, value: object) -> None:
    with pytest.raises(ValidationError) as error:
        ModelSettings.model_validate({"name": "a", key: value})

    assert error.value.errors()[0]["loc"][0] == key


@pytest.mark.parametrize("name", ["", " ", "sea horse", "-a", "a\n", "é", "a" * 201, "a'b"])
def test_a_name_that_clients_could_not_write_safely_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        ModelSettings(name=name)


@pytest.mark.parametrize("name", ["a", "meta-llama/Llama-3.1-8B", "tide@v2:latest", "x_1+y", "a" * 200])
def test_the_names_of_models_in_the_wild_are_accepted(name: str) -> None:
    assert ModelSettings(name=name).name == name


def test_bounds_themselves_are_within() -> None:
    scaling = ScalingSettings(min_replicas=0, max_replicas=10_000, upscale_delay_s=0, downscale_delay_s=0)

    assert scaling.max_replicas == 10_000
    assert ScalingSettings(min_replicas=3, max_replicas=3).min_replicas == 3
    assert HttpSettings(max_body_bytes=1024).max_body_bytes == 1024


@pytest.mark.parametrize("settings", [ScalingSettings, HttpSettings, IngressSettings])
def test_the_tree_is_closed_at_every_level(settings: type[Any]) -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        settings.model_validate({"replica": 1})


def test_settings_cannot_be_changed_once_checked() -> None:
    settings = ScalingSettings()

    with pytest.raises(ValidationError, match="frozen"):
        settings.min_replicas = 5


def test_the_least_number_of_replicas_is_at_most_the_most() -> None:
    with pytest.raises(ValidationError) as error:
        ScalingSettings(min_replicas=3, max_replicas=2)

    assert message(error) == "Value error, min_replicas = 3 must be at most max_replicas = 2"


def test_a_cpu_has_no_ranks() -> None:
    with pytest.raises(ValidationError) as error:
        ModelSettings(name="a", device="cpu", tensor_parallel_size=2)

    assert message(error) == "Value error, tensor_parallel_size = 2 must be 1 on device = 'cpu'"


def test_a_cpu_has_no_gpus() -> None:
    with pytest.raises(ValidationError) as error:
        ModelSettings(name="a", device="cpu", gpus_per_replica=1)

    assert message(error) == "Value error, gpus_per_replica = 1 has no meaning on device = 'cpu'"


def test_a_replica_has_one_gpu_a_rank() -> None:
    with pytest.raises(ValidationError) as error:
        ModelSettings(name="a", gpus_per_replica=2, tensor_parallel_size=4)

    assert "gpus_per_replica = 2 must equal tensor_parallel_size = 4" in message(error)
    assert ModelSettings(name="a", gpus_per_replica=4, tensor_parallel_size=4).gpus_per_replica == 4


def test_two_models_cannot_share_a_name() -> None:
    with pytest.raises(ValidationError) as error:
        AppSettings.model_validate({"models": [{"name": "a"}, {"name": "b"}, {"name": "a"}]})

    assert message(error) == "Value error, models: two models have the name 'a'; each needs its own"


def test_two_models_cannot_share_a_deployment() -> None:
    with pytest.raises(ValidationError) as error:
        AppSettings.model_validate({"models": [{"name": "a/b"}, {"name": "a.b"}]})

    assert "two models have the deployment_name 'Engine-a-b'" in message(error)


@pytest.mark.parametrize(
    ("name", "deployment"),
    [
        ("tideserve-tiny", "Engine-tideserve-tiny"),
        ("meta-llama/Llama-3.1-8B", "Engine-meta-llama-Llama-3-1-8B"),
        ("a_b@@c", "Engine-a_b-c"),
    ],
)
def test_a_deployment_is_called_after_its_model_in_letters_ray_accepts(name: str, deployment: str) -> None:
    assert ModelSettings(name=name).deployment_name == deployment


def test_settings_survive_the_trip_to_a_replica_as_plain_data() -> None:
    settings = AppSettings.model_validate(
        {"models": [{"name": "a", "device": "cpu", "scaling": {"min_replicas": 0, "max_replicas": 4}}]}
    )

    assert AppSettings.model_validate(settings.model_dump(mode="json")) == settings
