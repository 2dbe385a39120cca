"""`build`, the import path of every configuration file, makes the Serve application."""

from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig

from serve_app.cluster.placement import actor_options, engine_environment, placement
from serve_app.engine.engine_deployment import Engine
from serve_app.ingress.haproxy_server import ACCEPT_S
from serve_app.ingress.ingress_deployment import Ingress
from serve_app.runner.runner_deployment import BatchRunner
from serve_app.settings.knobs import Knobs
from serve_app.settings.load import knob_defaults, load_settings
from serve_app.settings.storage import LedgerSettings
from serve_app.settings.telemetry import TraceSettings
from serve_app.settings.tree import BATCH_RUNNER, INGRESS, AppSettings, ModelSettings, RequestLogSettings

# A process is replaced after three failed checks: some 18 s here, and 90 s with Ray's defaults. Ray draws 0.9
# to 1.1 of the period, so that each turn of the idle controller, once a second, begins a check.
_HEALTH_CHECKS: dict[str, Any] = {"health_check_period_s": 0.8, "health_check_timeout_s": 5.0}
ENGINE_INTERVAL_S = 1.0
# The ingress reports twice a second, because a request at zero replicas waits for the report.
_INGRESS_INTERVAL_S = 0.5
_MOST_REPLICAS = 10_000
_RUNNER_STOP_S = 5.0
"""The runner loses nothing if it is killed, so its end need not wait."""


def build(args: dict[str, Any]) -> Application:
    """Return the application for the `args:` of a configuration file.

    Raises:
        SettingsError: naming each key, its value and the bound it breaks.
    """
    return build_application(load_settings(args), knob_defaults(args))


def build_application(
    settings: AppSettings, knobs: Mapping[str, Knobs], engine_class: type = Engine
) -> Application:
    """Return one engine deployment for each model, or for each of its variants, behind one ingress.

    `knobs` are the default knobs of each model, by name. The `user_config` of `Ingress` overrides them.
    """
    engines = [
        engine_deployment(
            engine,
            settings.request_log,
            settings.zygote,
            engine_class,
            settings.telemetry.traces,
            settings.ledger,
        )
        for model in settings.models
        for engine in model.engines()
    ]
    ingress = settings.ingress
    runner = {"batch_runner": batch_runner(settings)} if settings.batch.enabled else {}
    return serve.deployment(
        Ingress,
        name=INGRESS,
        max_ongoing_requests=ingress.max_ongoing_requests,
        ray_actor_options=actor_options(ingress.cpus_per_replica, ingress.resources),
        graceful_shutdown_timeout_s=ACCEPT_S + max(model.drain_timeout_s for model in settings.models),
        **_HEALTH_CHECKS,
        # Not None: else Ray would not tell replicas when knobs are removed again.
        user_config={},
        autoscaling_config=open_bounds(1, _INGRESS_INTERVAL_S),
    ).bind(
        settings.model_dump(mode="json"),
        {name: defaults.model_dump(mode="json") for name, defaults in knobs.items()},
        *engines,
        **runner,
    )


def batch_runner(settings: AppSettings) -> Application:
    """Return the deployment that works on batches. It takes no CPU, which engines would lack."""
    return serve.deployment(
        BatchRunner,
        name=BATCH_RUNNER,
        num_replicas=1,
        ray_actor_options=actor_options(0, settings.batch.resources),
        graceful_shutdown_timeout_s=_RUNNER_STOP_S,
        **_HEALTH_CHECKS,
    ).bind(
        settings.batch.model_dump(mode="json"),
        settings.http.max_body_bytes,
        settings.telemetry.traces.model_dump(mode="json"),
    )


def open_bounds(least: int, interval_s: float) -> dict[str, Any]:
    """Return Ray's autoscaling settings that leave every decision to the policy, which applies the knobs.

    Bounds here could not follow changed knobs. Ray's delays and factors would be applied on top of the
    policy's decisions.
    """
    return {
        "min_replicas": least,
        "max_replicas": _MOST_REPLICAS,
        "upscale_delay_s": 0.0,
        "downscale_delay_s": 0.0,
        "metrics_interval_s": interval_s,
        "look_back_period_s": 5 * interval_s,
    }


def engine_deployment(
    model: ModelSettings,
    request_log: RequestLogSettings,
    zygote: bool = True,
    engine_class: type = Engine,
    traces: TraceSettings | None = None,
    ledger: LedgerSettings | None = None,
) -> Application:
    """Return the engine deployment of one model without variants, or of one variant."""
    options = placement(model)
    options["ray_actor_options"]["runtime_env"] = engine_environment(model, zygote)
    return serve.deployment(
        engine_class,
        name=model.engine_name,
        max_ongoing_requests=model.max_ongoing_requests,
        graceful_shutdown_timeout_s=model.drain_timeout_s,
        graceful_shutdown_wait_loop_s=0.1,  # another model may wait for the place
        **_HEALTH_CHECKS,
        request_router_config=RequestRouterConfig(
            request_router_class="serve_app.ingress.ray_router:EngineRouter",
            request_router_kwargs={
                "deployment": model.deployment_name,
                **({"variant": model.variant} if model.variant else {}),
            },
        ),
        autoscaling_config=open_bounds(0, ENGINE_INTERVAL_S),
        **options,
    ).bind(
        # A changed share must not restart the engines of a version.
        model.model_copy(update={"share": 0.0, "shadow": 0.0}).model_dump(mode="json"),
        request_log.model_dump(mode="json"),
        *([traces.model_dump(mode="json")] if traces is not None and traces.enabled else []),
        **({"ledger": ledger.model_dump(mode="json")} if ledger is not None and ledger.enabled else {}),
    )
