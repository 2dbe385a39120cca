"""`build`: the deployments of a configuration, as Ray Serve would be told to run them. No cluster."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.serve import Application, Deployment

from serve_app.app import build, build_application
from serve_app.engine.engine_deployment import Engine
from serve_app.ingress.haproxy_server import ACCEPT_S
from serve_app.ingress.ingress_deployment import Ingress
from serve_app.settings.knobs import Knobs
from serve_app.settings.load import load_settings
from serve_app.settings.settings_error import SettingsError
from serve_app.settings.tree import AppSettings, ModelSettings

CONFIG = Path(__file__).parents[1] / "config"


class Stand:
    """Stands where `Engine` would."""


def built(args: dict[str, Any]) -> tuple[Deployment, list[Deployment]]:
    """The ingress and the engines of an application."""
    application = build(args)
    assert isinstance(application, Application)
    ingress = application._bound_deployment
    return ingress, [engine._bound_deployment for engine in ingress.init_args[2:]]


def engine(**model: Any) -> Deployment:
    _, (only,) = built({"models": [{"name": "tide", **model}]})
    return only


def config(name: str) -> dict[str, Any]:
    document = yaml.safe_load((CONFIG / name).read_text())
    args: dict[str, Any] = document["applications"][0]["args"]
    return args


def scaling(deployment: Deployment) -> Any:
    return deployment._deployment_config.autoscaling_config


def variables(deployment: Deployment) -> dict[str, str]:
    found: dict[str, str] = deployment.ray_actor_options["runtime_env"]["env_vars"]
    return found


def test_the_build_imports_no_vllm() -> None:
    """The import takes longer than all else of a build, and an engine replica times it as a phase."""
    code = "import sys, serve_app.app; sys.exit('vllm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_laptop_configuration_is_one_engine_without_a_gpu() -> None:
    ingress, (only,) = built(config("serve.yaml"))

    assert (ingress.name, only.name) == ("Ingress", "Engine-tideserve-tiny")
    assert only.ray_actor_options["num_cpus"] == 0.4
    assert "num_gpus" not in only.ray_actor_options
    assert only._replica_config.placement_group_bundles is None
    assert variables(only)["VLLM_LOGGING_LEVEL"] == "WARNING"


def test_models_are_engines_in_the_order_of_the_file() -> None:
    _, engines = built(config("serve.multi-model.yaml"))

    assert [engine.name for engine in engines] == ["Engine-tideserve-tiny", "Engine-tideserve-tiny-embed"]
    assert [engine.ray_actor_options["num_cpus"] for engine in engines] == [0.5, 0.5]
    tasks = [ModelSettings.model_validate(engine.init_args[0]).task for engine in engines]
    assert tasks == ["generate", "embed"]


def test_an_a100_replica_holds_its_gpu() -> None:
    _, (only,) = built(config("serve.a100.yaml"))

    assert only.ray_actor_options["num_gpus"] == 1
    assert only.ray_actor_options["accelerator_type"] == "A100"


def test_a_tensor_parallel_replica_has_its_gpus_on_one_node() -> None:
    _, (only,) = built(config("serve.tp4.yaml"))

    assert only.ray_actor_options["num_gpus"] == 4
    assert only._replica_config.placement_group_bundles is None


def test_a_replica_over_several_nodes_has_a_bundle_per_gpu() -> None:
    args = config("serve.tp4.yaml")
    args["models"][0] |= {"pipeline_parallel_size": 2, "placement_group_strategy": "PACK"}
    _, (only,) = built(args)

    assert [bundle["GPU"] for bundle in only._replica_config.placement_group_bundles] == [1] * 8
    assert only._replica_config.placement_group_strategy == "PACK"
    assert not only.ray_actor_options.get("num_gpus")


@pytest.mark.parametrize("name", sorted(path.name for path in CONFIG.glob("*.yaml")))
def test_ray_s_bounds_leave_replica_counts_to_the_policy(name: str) -> None:
    """Bounds as wide as any knob may set them, no delay, and nothing that depends on the knobs."""
    ingress, engines = built(config(name))

    for deployment in (ingress, *engines):
        config_of_ray = scaling(deployment)
        assert config_of_ray.max_replicas == 10_000
        assert (config_of_ray.upscale_delay_s, config_of_ray.downscale_delay_s) == (0, 0)
    assert [scaling(engine).min_replicas for engine in engines] == [0] * len(engines)
    assert scaling(ingress).min_replicas == 1


def test_signals_are_reported_often_enough_for_a_wake_from_zero() -> None:
    """A request held at zero is in the ingress's report half a second later at the most."""
    ingress, (only,) = built({"models": [{"name": "a"}]})

    assert (scaling(ingress).metrics_interval_s, scaling(only).metrics_interval_s) == (0.5, 1.0)


def test_the_ingress_starts_with_every_model_s_default_knobs() -> None:
    ingress, _ = built({"profile": "lowest-cost", "models": [{"name": "a"}, {"name": "org/b"}]})

    knobs = ingress.init_args[1]
    assert list(knobs) == ["a", "org/b"]
    assert Knobs.model_validate(knobs["a"]).queue_target_per_replica == 32
    assert type(knobs["a"]) is dict


def test_removed_knobs_are_still_told_to_the_replicas() -> None:
    """Ray reconfigures replicas only where the deployment has a `user_config`, if an empty one."""
    ingress, (only,) = built({"models": [{"name": "a"}]})

    assert ingress._deployment_config.user_config == {}
    assert only._deployment_config.user_config is None


def test_an_engine_is_built_without_knobs() -> None:
    settings = load_settings({"models": [{"name": "a"}]})

    application = build_application(settings, {"a": Knobs(max_replicas=7)}, engine_class=Stand)

    ingress = application._bound_deployment
    (only,) = (engine._bound_deployment for engine in ingress.init_args[2:])
    assert only.func_or_class is Stand
    assert only.init_args == (
        settings.models[0].model_dump(mode="json"),
        settings.request_log.model_dump(mode="json"),
    )


def test_an_engine_is_told_of_traces_only_if_they_are_on() -> None:
    """Ray restarts replicas whose arguments change."""
    models = [{"name": "a"}]
    _, (without,) = built({"models": models})
    _, (traced,) = built({"models": models, "telemetry": {"traces": {"enabled": True}}})

    assert len(without.init_args) == 2
    assert traced.init_args[:2] == without.init_args
    assert traced.init_args[2]["enabled"] is True


def test_an_engine_is_told_of_the_ledger_unless_it_is_off() -> None:
    models = [{"name": "a"}]
    _, (with_ledger,) = built({"models": models, "ledger": {"currency": "EUR"}})
    _, (without,) = built({"models": models, "ledger": {"enabled": False}})

    assert with_ledger.init_kwargs["ledger"]["currency"] == "EUR"
    assert without.init_kwargs == {}


def test_ingress_drains_as_long_as_any_engine_after_it_has_accepted() -> None:
    ingress, engines = built(
        {"models": [{"name": "a", "drain_timeout_s": 30}, {"name": "b", "drain_timeout_s": 900}]}
    )

    drains = [engine._deployment_config.graceful_shutdown_timeout_s for engine in engines]
    assert drains == [30, 900]
    assert ingress._deployment_config.graceful_shutdown_timeout_s == 900 + ACCEPT_S


def test_each_engine_has_a_router_of_its_own_replicas() -> None:
    router = engine()._deployment_config.request_router_config

    assert router.request_router_kwargs == {"deployment": "Engine-tide"}
    module, _, name = router.request_router_class.partition(":")
    assert getattr(import_module(module), name).__name__ == "EngineRouter"


def test_a_lost_engine_core_is_noticed_within_seconds() -> None:
    assert engine()._deployment_config.health_check_period_s <= 1


def test_bounds_on_open_requests_are_the_settings() -> None:
    ingress, (only,) = built(
        {
            "models": [{"name": "a", "max_ongoing_requests": 12}],
            "ingress": {"max_ongoing_requests": 34},
        }
    )

    assert only.max_ongoing_requests == 12
    assert ingress.max_ongoing_requests == 34


def test_the_ingress_takes_its_size_from_the_settings() -> None:
    ingress, _ = built({"models": [{"name": "a"}], "ingress": {"cpus_per_replica": 0.25}})

    assert ingress.ray_actor_options["num_cpus"] == 0.25


def test_custom_resources_place_engines_and_ingress() -> None:
    """Ray Serve checks here, too, that the replica fits in its first bundle."""
    ingress, engines = built(
        {
            "models": [
                {"name": "a", "resources": {"profile_l4": 1}},
                {
                    "name": "b",
                    "tensor_parallel_size": 2,
                    "placement_group_strategy": "SPREAD",
                    "resources": {"profile_x2": 1},
                },
            ],
            "ingress": {"resources": {"ingress": 0.001}},
        }
    )

    assert ingress.ray_actor_options["resources"] == {"ingress": 0.001}
    assert [engine.ray_actor_options["resources"] for engine in engines] == [
        {"profile_l4": 1},
        {"profile_x2": 1},
    ]
    assert engines[1]._replica_config.placement_group_bundles[0]["profile_x2"] == 1


def test_the_embedded_model_asks_no_hub_and_others_may() -> None:
    assert variables(engine())["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in variables(engine(model="org/weights"))


def test_an_eager_engine_on_a_cpu_compiles_nothing_at_all() -> None:
    assert variables(engine(device="cpu", enforce_eager=True))["TORCHDYNAMO_DISABLE"] == "1"
    assert "TORCHDYNAMO_DISABLE" not in variables(engine(device="cpu"))
    assert "TORCHDYNAMO_DISABLE" not in variables(engine(device="gpu", enforce_eager=True))


def test_a_models_own_environment_wins() -> None:
    found = variables(engine(env={"TOKENIZERS_PARALLELISM": "true", "HF_HUB_OFFLINE": "0", "MINE": "1"}))

    assert (found["TOKENIZERS_PARALLELISM"], found["HF_HUB_OFFLINE"], found["MINE"]) == ("true", "0", "1")
    assert found["VLLM_NO_USAGE_STATS"] == "1"


def test_replicas_are_built_from_plain_data() -> None:
    args = {"models": [{"name": "tide", "max_model_len": 512}], "http": {"max_body_bytes": 2048}}

    ingress, (only,) = built(args)

    assert AppSettings.model_validate(ingress.init_args[0]) == AppSettings.model_validate(args)
    assert ModelSettings.model_validate(only.init_args[0]).max_model_len == 512
    assert ingress.func_or_class is not Engine
    assert issubclass(ingress.func_or_class, Ingress)
    assert only.func_or_class is Engine


def test_one_batch_runner_takes_no_place_of_an_ingress_replica() -> None:
    ingress, _ = built(
        {
            "models": [{"name": "a"}],
            "ingress": {"resources": {"ingress": 1}},
            "http": {"max_body_bytes": 4096},
            "batch": {"max_requests": 7},
        }
    )

    runner = ingress.init_kwargs["batch_runner"]._bound_deployment
    assert (runner.name, runner.num_replicas) == ("BatchRunner", 1)
    assert runner.ray_actor_options == {"num_cpus": 0}
    settings, max_line_bytes, traces = runner.init_args
    assert (settings["max_requests"], max_line_bytes, traces["enabled"]) == (7, 4096, False)


def test_the_batch_runner_takes_the_custom_resources_it_is_given() -> None:
    ingress, _ = built({"models": [{"name": "a"}], "batch": {"resources": {"batch-runner": 0.001}}})

    runner = ingress.init_kwargs["batch_runner"]._bound_deployment
    assert runner.ray_actor_options == {"num_cpus": 0, "resources": {"batch-runner": 0.001}}


def test_without_batches_there_is_no_runner() -> None:
    ingress, _ = built({"models": [{"name": "a"}], "batch": {"enabled": False}})

    assert ingress.init_kwargs == {}


def test_a_bad_configuration_builds_nothing() -> None:
    with pytest.raises(SettingsError, match=r"models\[0\]\.max_num_seqs = 0"):
        build({"models": [{"name": "a", "max_num_seqs": 0}]})
    with pytest.raises(SettingsError, match="profile = 'fastest'"):
        build({"profile": "fastest", "models": [{"name": "a"}]})
