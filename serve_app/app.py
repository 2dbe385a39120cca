"""`build`: the import path of every configuration file, and the only wiring."""

from __future__ import annotations

from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig

from serve_app.engine.deployment import Engine
from serve_app.env import EAGER_CPU, EMBEDDED_MODEL, ENGINE
from serve_app.ingress import Ingress
from serve_app.placement import placement
from serve_app.settings import AppSettings, ModelSettings, load_settings
from serve_app.settings.tree import EMBEDDED

_HEALTH_CHECK_PERIOD_S = 1.0
_HEALTH_CHECK_TIMEOUT_S = 30.0


def build(args: dict[str, Any]) -> Application:
    """The application for the `args:` of a configuration file.

    Raises:
        SettingsError: naming each key, its value and the bound it breaks.
    """
    return build_application(load_settings(args))


def build_application(settings: AppSettings, engine_class: type = Engine) -> Application:
    """One engine deployment a model, behind one ingress."""
    engines = [engine_deployment(model, engine_class) for model in settings.models]
    ingress = settings.ingress
    return serve.deployment(
        Ingress,
        name="Ingress",
        num_replicas=ingress.replicas,
        max_ongoing_requests=ingress.max_ongoing_requests,
        ray_actor_options={"num_cpus": ingress.cpus_per_replica},
        graceful_shutdown_timeout_s=max(model.drain_timeout_s for model in settings.models),
    ).bind(settings.model_dump(mode="json"), *engines)


def engine_deployment(model: ModelSettings, engine_class: type = Engine) -> Application:
    """The engine deployment of one model."""
    scaling = model.scaling
    if scaling.min_replicas == scaling.max_replicas:
        scale: dict[str, Any] = {"num_replicas": scaling.min_replicas}
    else:
        scale = {
            "autoscaling_config": {
                "min_replicas": scaling.min_replicas,
                "max_replicas": scaling.max_replicas,
                "target_ongoing_requests": scaling.target_ongoing_requests,
                "upscale_delay_s": scaling.upscale_delay_s,
                "downscale_delay_s": scaling.downscale_delay_s,
                "metrics_interval_s": 1.0,
                "look_back_period_s": 5.0,
                "policy": {"policy_function": "serve_app.autoscaling.ongoing:desired_replicas"},
            }
        }
    options = placement(model)
    embedded = EMBEDDED_MODEL if model.model == EMBEDDED else {}
    eager = EAGER_CPU if model.device == "cpu" and model.enforce_eager else {}
    options["ray_actor_options"]["runtime_env"] = {"env_vars": {**ENGINE, **embedded, **eager, **model.env}}
    return serve.deployment(
        engine_class,
        name=model.deployment_name,
        max_ongoing_requests=model.max_ongoing_requests,
        max_queued_requests=model.max_queued_requests,
        graceful_shutdown_timeout_s=model.drain_timeout_s,
        graceful_shutdown_wait_loop_s=0.5,
        health_check_period_s=_HEALTH_CHECK_PERIOD_S,
        health_check_timeout_s=_HEALTH_CHECK_TIMEOUT_S,
        request_router_config=RequestRouterConfig(
            request_router_class="serve_app.transport.router:EngineRouter",
            request_router_kwargs={"deployment": model.deployment_name},
        ),
        **scale,
        **options,
    ).bind(model.model_dump(mode="json"))
