from typing import Any

import pytest
from pydantic import ValidationError

from serve_app.settings import (
    AppSettings,
    HttpSettings,
    IngressSettings,
    ModelSettings,
    RequestLogSettings,
    SettingsError,
    load_settings,
)
from serve_app.settings.tree import StructuredOutputSettings

NAN = float("nan")


def message(error: pytest.ExceptionInfo[ValidationError]) -> str:
    (item,) = error.value.errors()
    return item["msg"]


@pytest.mark.parametrize(
    ("settings", "key", "value"),
    [
        (HttpSettings, "max_body_bytes", 1023), (HttpSettings, "max_body_bytes", (1 << 30) + 1),
        (HttpSettings, "body_timeout_s", 0), (HttpSettings, "body_timeout_s", 3601),
        (HttpSettings, "max_body_memory_bytes", (1 << 20) - 1),
        (HttpSettings, "max_body_memory_bytes", (1 << 40) + 1), (HttpSettings, "api_keys_file", "keys"),
        (HttpSettings, "api_keys_file", ""), (IngressSettings, "cpus_per_replica", -0.5),
        (IngressSettings, "max_ongoing_requests", 0), (IngressSettings, "data_plane", "carrier-pigeon"),
        (RequestLogSettings, "directory", "logs"), (RequestLogSettings, "max_bytes", (1 << 20) - 1),
    ],
)  # fmt: skip
def test_a_value_out_of_its_range_is_refused(settings: type[Any], key: str, value: object) -> None:
    with pytest.raises(ValidationError) as error:
        settings.model_validate({key: value})

    assert [item["loc"] for item in error.value.errors()] == [(key,)]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model", ""), ("device", "tpu"), ("cpus_per_replica", -1),
        ("placement_group_strategy", "TIGHT"), ("dtype", "int3"), ("quantization", "zip"),
        ("load_format", "gguf"), ("tensor_parallel_size", 0), ("tensor_parallel_size", 1025),
        ("gpu_memory_utilization", 0),
        ("gpu_memory_utilization", 1.01), ("gpu_memory_utilization", NAN),
        ("kv_cache_memory_bytes", (1 << 20) - 1), ("max_model_len", 15), ("max_num_batched_tokens", 15),
        ("max_num_seqs", 0), ("scheduling_policy", "random"), ("task", "dance"),
        ("engine_args", ["enforce_eager"]), ("env", {"OMP_NUM_THREADS": 1}),
        ("max_ongoing_requests", 0), ("max_sequences_per_request", 0),
        ("max_sequences_per_request", 10_001), ("drain_timeout_s", -1), ("max_queued_requests", 0),
    ],
)  # fmt: skip
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
    assert HttpSettings(max_body_bytes=1024).max_body_bytes == 1024
    assert HttpSettings(max_body_bytes=1 << 30, max_body_memory_bytes=1 << 31).max_body_bytes == 1 << 30
    assert ModelSettings(name="a", max_sequences_per_request=10_000).max_sequences_per_request == 10_000
    assert IngressSettings(cpus_per_replica=0).cpus_per_replica == 0
    assert ModelSettings(name="a", resources={"tide": 0.0001}).resources == {"tide": 0.0001}


@pytest.mark.parametrize("settings", [HttpSettings, IngressSettings])
def test_the_tree_is_closed_at_every_level(settings: type[Any]) -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        settings.model_validate({"replicas": 1})


@pytest.mark.parametrize("scaling", [{"min_replicas": 0, "max_replicas": 4}, {}, None])
def test_replica_counts_among_the_settings_of_a_model_are_refused_with_where_they_belong(
    scaling: object,
) -> None:
    with pytest.raises(ValidationError) as error:
        ModelSettings.model_validate({"name": "a", "scaling": scaling})

    assert "name: Ingress, user_config: autoscaling: <model name>" in message(error)


def test_settings_cannot_be_changed_once_checked() -> None:
    settings = HttpSettings()

    with pytest.raises(ValidationError, match="frozen"):
        settings.max_body_bytes = 2048


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            {"device": "cpu", "tensor_parallel_size": 2},
            "tensor_parallel_size = 2 must be 1 with device = 'cpu'",
        ),
        (
            {"device": "cpu", "load_format": "fastsafetensors"},
            "load_format = 'fastsafetensors' loads onto GPUs, and device = 'cpu'",
        ),
        ({"device": "cpu", "gpus_per_replica": 1}, "gpus_per_replica = 1 has no meaning with device = 'cpu'"),
        (
            {"gpus_per_replica": 2, "tensor_parallel_size": 4},
            "gpus_per_replica = 2 must equal tensor_parallel_size = 4: vLLM uses one GPU per rank",
        ),
    ],
)
def test_what_a_device_has_not_is_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError) as error:
        ModelSettings.model_validate({"name": "a", **given})

    assert message(error) == f"Value error, {problem}"
    assert ModelSettings(name="a", gpus_per_replica=4, tensor_parallel_size=4).gpus_per_replica == 4


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"tide": 0}, ".tide = 0: input should be greater than or equal to 0.0001"),
        ({"tide": -1}, ".tide = -1: input should be greater than or equal to 0.0001"),
        ({"tide": NAN}, ".tide = nan: input should be a finite number"),
        ({"": 1}, " = {'': 1}: the name '' must be printable, without spaces around it, and not empty"),
        ({" t": 1}, " = {' t': 1}: the name ' t' must be printable, without spaces around it, and not empty"),
        ({"CPU": 1}, " = {'CPU': 1}: 'CPU' (here 1) is not a custom resource: cpus_per_replica sets it"),
        (
            {"accelerator_type:L4": 0.1},
            " (here 0.1) is not a custom resource: the accelerator_type of a model",
        ),
        ({"memory": 1}, "'memory' (here 1) is not a custom resource: Ray counts it in bytes by itself"),
    ],
)
def test_a_custom_resource_has_a_name_of_its_own_and_an_amount(given: dict[str, float], problem: str) -> None:
    with pytest.raises(SettingsError) as error:
        load_settings({"models": [{"name": "a", "resources": given}], "ingress": {"resources": given}})

    on_model, on_ingress = error.value.problems
    assert on_model.startswith("models[0].resources")
    assert on_ingress.startswith("ingress.resources")
    assert problem in on_model
    assert problem in on_ingress


@pytest.mark.parametrize(
    ("names", "shared"), [("a b a", "name 'a'"), ("a/b a.b", "deployment_name 'Engine-a-b'")]
)
def test_two_models_cannot_share_a_name_or_a_deployment(names: str, shared: str) -> None:
    with pytest.raises(ValidationError) as error:
        AppSettings.model_validate({"models": [{"name": name} for name in names.split()]})

    assert message(error) == f"Value error, models: two models have the {shared}; each needs its own"


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
        {"models": [{"name": "a", "device": "cpu", "engine_args": {"seed": 7}, "env": {"A": "1"}}]}
    )

    assert AppSettings.model_validate(settings.model_dump(mode="json")) == settings


def test_the_memory_for_bodies_holds_two_of_the_largest() -> None:
    with pytest.raises(ValidationError, match="max_body_memory_bytes = 1048576 must be at least twice"):
        HttpSettings(max_body_bytes=1 << 20, max_body_memory_bytes=1 << 20)
    HttpSettings(max_body_bytes=1 << 20, max_body_memory_bytes=2 << 20)


@pytest.mark.parametrize(("backend", "compact"), [("xgrammar", True), ("guidance", True), ("auto", False)])
def test_whitespace_is_forbidden_wherever_the_backend_can(backend: str, compact: bool) -> None:
    assert StructuredOutputSettings.model_validate({"backend": backend}).compact is compact


def test_whitespace_can_be_allowed_again() -> None:
    assert not StructuredOutputSettings(disable_any_whitespace=False).compact


def test_a_backend_that_cannot_forbid_it_is_named() -> None:
    with pytest.raises(ValidationError, match="backend = 'outlines' cannot"):
        StructuredOutputSettings(backend="outlines", disable_any_whitespace=True)


@pytest.mark.parametrize(("cpus", "seconds"), [(1, 1), (2, 1), (3, 10), (64, 10), (None, 1)])
def test_less_time_is_given_where_one_thread_compiles_for_all(
    cpus: int | None, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cpus)

    assert StructuredOutputSettings().compile_s == seconds
    assert StructuredOutputSettings(max_compile_s=5).compile_s == 5
