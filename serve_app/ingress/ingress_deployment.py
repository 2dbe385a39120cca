"""The ingress deployment: it serves the HTTP API and finds engine replicas through Ray Serve."""

import asyncio
import logging
import os
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import ray
from fastapi import FastAPI
from ray import serve
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE
from ray.serve.handle import DeploymentHandle

from serve_app.api.api_keys import ApiKeyFile, appeared
from serve_app.api.batch_access import BatchAccess
from serve_app.api.batch_lines import BatchLines
from serve_app.api.budgets import Budgets, Prices
from serve_app.api.endpoints import ApiModel
from serve_app.api.fleet_events import FleetEvents
from serve_app.api.http_api import create_app
from serve_app.api.quotas import Quotas
from serve_app.api.usage import UsageView
from serve_app.batch.file_store import FileStore
from serve_app.batch.store import BatchStore
from serve_app.cluster.bounded_call import BoundedCall
from serve_app.cluster.serve_status import serve_status
from serve_app.ingress.admission import Admission
from serve_app.ingress.batch_calls import BatchCalls
from serve_app.ingress.cold_start_progress import ProgressReader, state_reader
from serve_app.ingress.engine_channel import EngineChannels
from serve_app.ingress.fleet_state import FleetState
from serve_app.ingress.haproxy_server import serve_haproxy
from serve_app.ingress.knob_applier import KnobApplier, KnobDeployer
from serve_app.ingress.policy_view import PolicyView
from serve_app.ingress.quota_exchange import QuotaReports, share_quotas
from serve_app.ingress.ray_router import ColdReports
from serve_app.ingress.readiness import ServeObserver
from serve_app.ingress.relay import RelayClient
from serve_app.ingress.replica_heartbeats import Heartbeats
from serve_app.ingress.replica_set import ReplicaSet, replica_set
from serve_app.ingress.request_counters import IngressCounters
from serve_app.ingress.versions import Side, Versions, VersionShares
from serve_app.ledger.budgets import BudgetStore
from serve_app.ledger.store import UsageStore
from serve_app.patches.ray import is_draining
from serve_app.processes import give_back_memory
from serve_app.settings.identity import engine_identity
from serve_app.settings.knobs import Knobs, LiveKnobs
from serve_app.settings.storage import batch_database_url, batch_files_url, ledger_url
from serve_app.settings.tree import AppSettings, ModelSettings
from serve_app.telemetry.replica_metrics import ApiKeyMetrics, BudgetMetrics, IngressMetrics
from serve_app.telemetry.traces import request_traces
from serve_app.wire.batches import BatchLine, LineAnswers
from serve_app.wire.ingress_reports import keep_report
from serve_app.wire.signals import INGRESS_FIELDS, ONGOING_REQUESTS, ingress_key
from serve_app.wire.versions import Share
from serve_app.zygote.warm_nodes import keep_nodes_warm

logger = logging.getLogger("ray.serve")

_PUBLISH_S = 1.0
_GIVE_BACK_S = 60.0
_MOST_LINKED = 8
"""The traces of one model to which a scaling decision may link."""
_FRESH_S = 0.5
"""Ray is asked at most twice a second."""


@serve.ingress()
class Ingress:
    """Validates, routes by model, queues requests for a cold start, and streams.

    Args:
        settings: `AppSettings` as plain data.
        knobs: Default knobs of each model, by name, as plain data.
        engines: A handle to each engine deployment, in the order of `settings.models` and their variants.
        batch_runner: A handle to the batch runner, if there is one: Ray deploys what its ingress is given.

    Raises:
        SettingsError: `http.api_keys_file` has no usable keys.
    """

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self,
        settings: dict[str, Any],
        knobs: dict[str, dict[str, Any]],
        *engines: DeploymentHandle,
        batch_runner: DeploymentHandle | None = None,
    ) -> None:
        self._settings = AppSettings.model_validate(settings)
        models, file = self._settings.models, self._settings.http.api_keys_file
        self._api_keys = None if file is None else await appeared(file, check=self._settings.check_keys)
        if self._api_keys is not None and self._settings.http.oidc is not None:
            from serve_app.api.oidc import Oidc  # noqa: PLC0415  # its imports take 0.1 s

            self._api_keys.oidc = Oidc(self._settings.http.oidc, partial(getattr, self._api_keys, "teams"))
        controller = ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
        self._listens_on = (await controller.get_http_config.remote()).host
        context = serve.get_replica_context()
        app, replica = context.app_name, context.replica_tag
        self._live = LiveKnobs(
            {name: Knobs.model_validate(given) for name, given in knobs.items()},
            {model.name: model.lora for model in models},
        )
        self._knob_applier = KnobApplier(app, self._settings, self._live)
        self._policy_view = PolicyView(app, self._knob_applier, partial(loaded_adapters, models))
        replicas = {name: replica_set(name) for name in (model.deployment_name for model in models)}
        deployments = {
            model.deployment_name: [engine.engine_name for engine in model.engines()] for model in models
        }
        names = list(chain.from_iterable(deployments.values()))
        read_state = state_reader(app, names)
        self._stored = BoundedCall(
            f"stored state of {app}", lambda: read_state().by_model(deployments), _FRESH_S
        )
        self._serve_status = BoundedCall(
            f"Ray Serve's status of {app}", lambda: serve_status(app, names).by_model(deployments), _FRESH_S
        )
        self._observer = ServeObserver(
            models,
            replicas,
            self._live,
            self._serve_status,
            self._stored,
            self._settings.zygote,
        )
        self._page = None
        if self._settings.ui:
            state = FleetState(self._settings, self._observer, self._policy_view, self._stored)
            events = FleetEvents(state, self._api_keys, is_draining)
            self._page = (events, KnobDeployer(app, controller, self._live).set)
        self._traces = request_traces(self._settings.telemetry.traces, os.environ, replica)
        self._usage = self._budgets = None
        if (ledger := self._settings.ledger).enabled:
            usage = UsageStore(ledger_url(ledger), app)
            unwritten_s = partial(longest_unwritten_s, replicas.values())
            if self._api_keys is not None:
                self._budgets = self._make_budgets(usage, self._api_keys, unwritten_s, app, replica)
            self._usage = UsageView(usage, ledger.currency, self._budgets, unwritten_s)
        batch = self._settings.batch
        self._batches = None
        if batch.enabled:
            store = BatchStore(batch_database_url(batch), batch, app)
            self._batches = BatchAccess(store, FileStore(batch_files_url(batch)))
        self._served: list[ApiModel] = []
        self._counters: list[IngressCounters] = []
        self._channels = EngineChannels()
        self._cold_reports = ColdReports(
            controller, context.replica_id, partial(ingress_report, self._counters)
        )
        handles = iter(engines)
        self._versions: list[Versions] = []
        for model in models:
            own = [next(handles) for _ in deployments[model.deployment_name]]
            self._serve(model, own, IngressMetrics(model.name, replica))
        self._shares = VersionShares(app, replica, self._versions)
        heartbeats = Heartbeats(list(replicas.values()), self._channels)
        self._tasks = [
            asyncio.create_task(self._publish_queues()),
            asyncio.create_task(heartbeats.run()),
            asyncio.create_task(_give_back_memory()),
            asyncio.create_task(
                keep_report(
                    app,
                    replica,
                    self._has_queued,
                    partial(ingress_report, self._counters),
                    self._waiting_traces,
                )
            ),
        ]
        if self._versions:
            self._tasks.append(asyncio.create_task(self._shares.run()))
        if self._page is not None:
            self._tasks.append(asyncio.create_task(self._page[0].run()))
        if self._budgets is not None:
            self._tasks.append(asyncio.create_task(self._budgets.run()))
        self._quotas = None
        if (keys := self._api_keys) is not None:
            key_metrics = ApiKeyMetrics(replica)
            self._quotas = Quotas(on_limited=key_metrics.count_limited)
            reports = QuotaReports(app, replica)
            if keys.has_limits:  # the first request must find what other replicas leave of a limit
                with suppress(Exception):  # `share_quotas` logs it, and goes on without Ray's GCS
                    self._quotas.share(*await asyncio.to_thread(reports.exchange, {}))
            self._tasks += [
                asyncio.create_task(_publish_keys(keys, key_metrics)),
                asyncio.create_task(share_quotas(reports, self._quotas, lambda: keys.has_limits)),
            ]
        serve_haproxy(context.replica_id)
        if self._settings.zygote:
            each = [engine for model in models for engine in model.engines()]
            self._tasks.append(asyncio.create_task(keep_nodes_warm(app, each)))

    def _make_budgets(
        self, usage: UsageStore, keys: ApiKeyFile, unwritten_s: Callable[[], float], app: str, replica: str
    ) -> Budgets:
        ledger, models = self._settings.ledger, self._settings.models
        gpu_s = {model.name: model.hour_price(ledger) / 3600 for model in models}
        tokens = {
            model.name: prices for model in models if (prices := model.token_prices(ledger)) is not None
        }
        versions = {model.version_of: model.name for model in models if model.version_of is not None}
        return Budgets(
            BudgetStore(ledger_url(ledger), app, f"{replica} {uuid.uuid4().hex}"),
            Prices(gpu_s, tokens, usage.prices, versions=versions),
            lambda: keys.budgets,
            ledger.on_database_error == "serve",
            unwritten_s,
            BudgetMetrics(replica).publish,
        )

    def _serve(
        self, model: ModelSettings, handles: Sequence[DeploymentHandle], metrics: IngressMetrics
    ) -> None:
        knobs = partial(self._live.of, model.name)
        progress = ProgressReader(self._stored, self._serve_status, model.deployment_name)
        replicas = replica_set(model.deployment_name)
        served = next((each for each in self._served if each.name == model.version_of), None)

        def is_alone() -> bool:
            return all(each.alone for each in self._versions if each.new.name == model.name)

        admission = Admission(
            model,
            replicas,
            handles[0],
            knobs,
            progress,
            on_cold=self._cold_reports.start,
            others=handles[1:],
            queues=is_alone,
        )
        engine = RelayClient(model, admission, self._channels, is_alone=is_alone)
        counters = IngressCounters(model.deployment_name, admission.queue, metrics)
        self._counters.append(counters)
        if served is not None and isinstance(served.engine, RelayClient):
            old = next(each for each in self._settings.models if each.name == served.name)
            versions = Versions(
                Side(served.name, served.engine, served.traffic),
                Side(model.name, engine, counters),
                Share.by_settings(model.share, model.shadow, engine_identity(model)),
                knobs,
                (model.model, model.revision) == (old.model, old.revision),
            )
            self._versions.append(versions)
            index = self._served.index(served)
            self._served[index] = replace(served, engine=versions, traffic=versions)
            return
        self._served.append(
            ApiModel(model.name, int(time.time()), engine, model.max_model_len, counters, knobs)
        )

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Ray calls this after the constructor and serves what it returns."""
        app = create_app(
            self._served,
            self._observer,
            self._settings.http,
            api_keys=self._api_keys,
            quotas=self._quotas,
            budgets=self._budgets,
            autoscaling=self._policy_view,
            behind_ray=True,
            listens_on=self._listens_on,
            traces=self._traces,
            usage=self._usage,
            batches=self._batches,
            page=self._page,
            set_share=self._shares.set if self._versions else None,
        )
        endpoints = app.state.endpoints
        for versions in self._versions:
            versions.memory = endpoints.memory
        shared = self._settings.http.share_prefix_cache
        lines = BatchLines(endpoints, self._api_keys, shared, self._traces)
        self._batch_calls = BatchCalls(endpoints, lines, self._settings.models, self._live)
        return app

    async def answer_lines(
        self, owner: str, batch_id: str, url: str, model: str, lines: Sequence[BatchLine]
    ) -> AsyncIterator[LineAnswers]:
        """Yield the answers to lines of one batch, as they become ready. The batch runner calls this.

        Args:
            owner: The name of the batch's API key; "" on a server without keys.
            url: The endpoint of the lines.
        """
        answers = self._batch_calls.answer(owner, batch_id, url, model, lines)
        async with aclosing(answers):
            async for part in answers:
                yield part

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Ray calls this with the knobs, at the start and after each change.

        Raises:
            SettingsError: for invalid knobs at the start. Later, invalid knobs are logged and shown.
        """
        await self._knob_applier.apply(user_config)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the report that Ray sends to the policy twice a second: `IngressSignals`."""
        return ingress_report(self._counters)

    def _has_queued(self) -> bool:
        # Without the lane background, which may wait for hours: the policy reads the report of a draining
        # ingress replica only to start engine replicas for its requests.
        return any(counters.queue.foreground for counters in self._counters)

    def _waiting_traces(self) -> list[str]:
        return [trace for counters in self._counters for trace in counters.queue.traces(_MOST_LINKED)]

    async def _publish_queues(self) -> None:
        while True:
            for counters in self._counters:
                counters.publish_queue()
            await asyncio.sleep(_PUBLISH_S)


async def _give_back_memory() -> None:
    """Give memory back every minute: `/metrics` and the page's samples free some in any thread."""
    while True:
        await asyncio.sleep(_GIVE_BACK_S)
        await asyncio.to_thread(give_back_memory)


async def _publish_keys(keys: ApiKeyFile, metrics: ApiKeyMetrics) -> None:
    """Look at the file and publish its state every second, also without requests."""
    while True:
        await keys.refresh()
        metrics.publish(len(keys), bool(keys.trouble))
        await asyncio.sleep(_PUBLISH_S)


def longest_unwritten_s(replica_sets: Iterable[ReplicaSet]) -> float:
    """Return how many seconds the oldest usage of all engine replicas has been waiting for the ledger."""
    return max((replica.unwritten_s for each in replica_sets for replica in each.listed()), default=0.0)


def loaded_adapters(models: Iterable[ModelSettings]) -> dict[str, dict[str, int]]:
    """Return how many replicas have loaded each adapter, by model and adapter."""
    return {
        model.name: dict(
            Counter(
                name
                for replica in replica_set(model.deployment_name).listed()
                for name in sorted(replica.adapters)
            ).most_common()
        )
        for model in models
    }


def ingress_report(models: Iterable[IngressCounters]) -> dict[str, float]:
    """Return an ingress replica's report as flat numbers: its open requests, and each model's signals."""
    flat = {ONGOING_REQUESTS: 0.0}
    for counters in models:
        signals = counters.signals()
        flat[ONGOING_REQUESTS] += max(0, counters.open_requests - len(counters.queue))
        for name in INGRESS_FIELDS:
            flat[ingress_key(counters.deployment, name)] = float(getattr(signals, name))
    return flat
