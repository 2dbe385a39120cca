from typing import Any

import pytest
from pydantic import ValidationError

from serve_app.settings.load import load_settings
from serve_app.settings.settings_error import SettingsError
from serve_app.settings.tree import AppSettings, HttpSettings, ModelSettings, StructuredOutputSettings

NAN = float("nan")


def message(error: pytest.ExceptionInfo[ValidationError]) -> str:
    (item,) = error.value.errors()
    return item["msg"]


@pytest.mark.parametrize("name", ["", " ", "sea horse", "-a", "a\n", "é", "a" * 201, "a'b"])
def test_an_unsafe_model_name_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        ModelSettings(name=name)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            {"device": "cpu", "tensor_parallel_size": 2},
            "tensor_parallel_size = 2 must be 1 with device = 'cpu'",
        ),
        (
            {"device": "cpu", "pipeline_parallel_size": 2},
            "pipeline_parallel_size = 2 must be 1 with device = 'cpu'",
        ),
        (
            {"device": "cpu", "load_format": "fastsafetensors"},
            "load_format = 'fastsafetensors' loads onto GPUs, and device = 'cpu'",
        ),
        ({"device": "cpu", "gpus_per_replica": 1}, "gpus_per_replica = 1 has no meaning with device = 'cpu'"),
        (
            {"gpus_per_replica": 2, "tensor_parallel_size": 4},
            "gpus_per_replica = 2 must equal tensor_parallel_size x pipeline_parallel_size = 4: vLLM uses "
            "one GPU per rank",
        ),
        (
            {"gpus_per_replica": 2, "tensor_parallel_size": 2, "pipeline_parallel_size": 3},
            "gpus_per_replica = 2 must equal tensor_parallel_size x pipeline_parallel_size = 6: vLLM uses "
            "one GPU per rank",
        ),
    ],
)
def test_settings_that_a_device_lacks_are_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError) as error:
        ModelSettings.model_validate({"name": "a", **given})

    assert message(error) == f"Value error, {problem}"


def test_replica_has_one_gpu_per_rank() -> None:
    model = ModelSettings(name="a", gpus_per_replica=8, tensor_parallel_size=4, pipeline_parallel_size=2)
    assert model.ranks == 8


@pytest.mark.parametrize(
    ("ranks", "strategy", "spans"),
    [(1, "SPREAD", False), (2, "STRICT_PACK", False), (2, "PACK", True), (2, "STRICT_SPREAD", True)],
)
def test_only_strict_pack_keeps_gpus_on_one_node(ranks: int, strategy: Any, spans: bool) -> None:
    for size in ("tensor_parallel_size", "pipeline_parallel_size"):
        given = {"name": "a", size: ranks, "placement_group_strategy": strategy}
        assert ModelSettings.model_validate(given).spans_nodes is spans


@pytest.mark.parametrize("model", ["./weights", "../weights", "~/weights", "."])
def test_a_relative_folder_is_refused(model: str) -> None:
    with pytest.raises(ValueError, match="must be an absolute path"):
        ModelSettings.model_validate({"name": "m", "model": model})


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
def test_a_custom_resource_needs_its_own_name_and_an_amount(given: dict[str, float], problem: str) -> None:
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
def test_a_deployment_has_the_name_of_its_model(name: str, deployment: str) -> None:
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


@pytest.mark.parametrize(("cpus", "seconds"), [(1, 1), (2, 1), (3, 10), (64, 10), (None, 1)])
def test_one_compile_thread_leaves_less_time_for_a_grammar(
    cpus: int | None, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cpus)

    assert StructuredOutputSettings().compile_s == seconds
    assert StructuredOutputSettings(max_compile_s=5).compile_s == 5


@pytest.mark.parametrize(
    ("given", "compact"),
    [
        ({"backend": "xgrammar"}, True),
        ({"backend": "guidance"}, True),
        ({"backend": "auto"}, False),
        ({"disable_any_whitespace": False}, False),
    ],
)
def test_json_has_no_whitespace_where_the_backend_can_forbid_it(given: dict[str, Any], compact: bool) -> None:
    assert StructuredOutputSettings.model_validate(given).compact is compact
    with pytest.raises(ValidationError, match="backend = 'outlines' cannot"):
        StructuredOutputSettings(backend="outlines", disable_any_whitespace=True)
