"""The Ray Serve deployment around one engine: one replica, one `AsyncLLM`."""

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import ray
from ray import serve

from serve_app import env
from serve_app.cluster.bounded_call import BoundedCall
from serve_app.engine.engine_health import EngineHealth
from serve_app.engine.launch import launch
from serve_app.engine.node_watch import NodeWatch
from serve_app.engine.start_watch import STILL_ON_NODES_S, STILL_S, watched
from serve_app.engine.startup import CPU_CORE, Startup, error_log, lower_priority, process_start
from serve_app.engine.startup_spans import trace_startup
from serve_app.ledger.meter import UsageMeter
from serve_app.ledger.store import UsageStore
from serve_app.ledger.usage import of_variant
from serve_app.ledger.writer import UsageWriter
from serve_app.patches.ray import keep_log_handlers
from serve_app.patches.ray_idle import report_changes
from serve_app.settings.identity import engine_identity, identity_number
from serve_app.settings.storage import LedgerSettings, ledger_url
from serve_app.settings.telemetry import TraceSettings
from serve_app.settings.tree import ModelSettings, RequestLogSettings
from serve_app.telemetry.replica_metrics import EngineMetrics
from serve_app.telemetry.request_log import RequestLog, request_log_segments
from serve_app.wire.data_plane import Beat
from serve_app.wire.phases import DRAINING, ENGINE_DIED, ENGINE_HUNG, forget_phase, publish_phase
from serve_app.wire.signals import ENGINE_IDENTITY
from serve_app.zygote.start import own_zygote
from serve_app.zygote.warm_nodes import start_spare_here

logger = logging.getLogger("ray.serve")

_GAUGE_INTERVAL_S = 1.0
_RAY_WAIT_S = 1.0
_PHASE = "the phase of this replica"
_SPARE = "the spare process of the next replica"


class Engine:
    """Holds the engine of one model on this replica's GPUs.

    Args:
        model: `ModelSettings` as plain data, which Ray compares to decide whether to restart replicas.
        request_log: `RequestLogSettings`, as plain data too.
        traces: `TraceSettings`, as plain data too.
        ledger: `LedgerSettings`, as plain data too; None for no ledger.
    """

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self,
        model: dict[str, Any],
        request_log: dict[str, Any],
        traces: dict[str, Any] | None = None,
        ledger: dict[str, Any] | None = None,
    ) -> None:
        self._stop = AsyncExitStack()
        """The work of `__del__`, in reverse order. Ray also calls `__del__` after a failed start."""
        process, warm_node = process_start()
        self._model = ModelSettings.model_validate(model)
        context = serve.get_replica_context()
        self._replica = (context.app_name, context.deployment, context.replica_tag)
        self._metrics = EngineMetrics(self._model.name, context.replica_tag, self._model.variant)
        publish, traced = trace_startup(
            TraceSettings.model_validate(traces or {}),
            self._model,
            context.replica_tag,
            partial(publish_phase, *self._replica),
        )
        self._startup = Startup(
            self._model.name,
            publish,
            durations={"process": process},
            warm_node=warm_node,
            engine_identity=engine_identity(self._model),
            about={"node": ray.get_runtime_context().get_node_id()},
            log=error_log(),
        )
        self._node_watch = NodeWatch(self._startup.about["node"], self._note_notice)
        self._noticed = asyncio.Event()
        self._stop.push_async_callback(self._forget_phase)
        self._usage_writer: UsageWriter | None = None
        self._meter = self._start_ledger(LedgerSettings.model_validate(ledger or {"enabled": False}), process)
        segments = request_log_segments(RequestLogSettings.model_validate(request_log), *self._replica)
        log = None if segments is None else RequestLog(segments)
        if log is not None:
            self._stop.push_async_callback(log.close)

        core = CPU_CORE if self._model.device == "cpu" else 0
        with (
            lower_priority(core),
            keep_log_handlers(),
            self._import_core_beside(),
            watched(self._startup, STILL_ON_NODES_S if self._model.spans_nodes else STILL_S),
        ):
            self._engine = await launch(traced, self._metrics, self._startup, log, self._meter)
        self._stop.push_async_callback(self._stop_engine)

        self._health = EngineHealth(self._engine, self._model.engine_hang_timeout_s)
        self._run(self._sample_gauges())
        self._run(self._health.watch())
        if self._is_preemptible:
            self._run(self._watch_node())
        if log is not None:
            self._run(log.keep_writing())

        # Imported with the module, vLLM would be part of each build of the application, and of no phase.
        from serve_app.engine.data_plane import DataPlane  # noqa: PLC0415

        self._data_plane = DataPlane(self._engine.client, self._heartbeat)
        self._stop.push_async_callback(self._drain)
        with self._startup.phase("data_plane"):
            await self._data_plane.start(ray.util.get_node_ip_address())
        report_changes()
        self._startup.finish()

    @property
    def _is_preemptible(self) -> bool:
        return any(variant.preemptible for variant in self._model.variants)

    async def _watch_node(self) -> None:
        """Watch the node, and publish once that its end is announced."""
        watching = asyncio.create_task(self._node_watch.watch())
        try:
            await self._noticed.wait()
            await self._ask(_PHASE, self._startup.publish_readiness)
            await watching
        finally:
            watching.cancel()

    def _note_notice(self, left_s: float) -> None:
        logger.warning("model %s: the node of this replica ends in %.0f s", self._model.name, left_s)
        self._startup.about["notice_s"] = f"{left_s:.1f}"
        self._noticed.set()

    def _heartbeat(self) -> Beat:
        names, load_s = self._engine.loaded_adapters()
        return Beat(
            self._health.trouble(),
            self._health.standstill_s(time.monotonic()),
            self._engine.prefix_cache_tokens,
            step_tokens=self._engine.limits().max_num_batched_tokens,
            adapters=names,
            adapter_load_s=load_s,
            first_runs_left=sorted(self._engine.first_runs.left),
            unwritten_s=self._usage_writer.unwritten_s if self._usage_writer is not None else 0.0,
            ends_in_s=self._node_watch.ends_in_s,
        )

    def _start_ledger(self, settings: LedgerSettings, process_s: float) -> UsageMeter | None:
        """Start to write this replica's usage. `process_s` is how long ago the replica got its devices."""
        if not settings.enabled:
            return None
        model = self._model
        payer = of_variant(model.name, model.variant) if model.variant else model.name
        price, token_prices = model.hour_price(settings) / model.ranks, model.token_prices(settings)
        meter = UsageMeter(payer, model.ranks, price, process_s, token_prices=token_prices)
        store = UsageStore(ledger_url(settings), self._replica[0])
        writer = UsageWriter(meter, store, settings.retention_days, self._metrics.count_usage)
        self._usage_writer = writer
        writer.start()
        self._stop.push_async_callback(asyncio.to_thread, writer.close)
        return meter

    def _import_core_beside(self) -> AbstractContextManager[None]:
        """If the node has no zygote, import vLLM for the engine core in parallel with this process.

        Not for an engine over several nodes, whose core needs Ray, and not if vLLM is already imported.
        """
        if env.ZYGOTE_SOCKET in os.environ or "vllm" in sys.modules or self._model.spans_nodes:
            return nullcontext()
        return own_zygote("serve_app.engine.warm_imports:import_core")

    async def __del__(self) -> None:
        """Drain and stop. Ray calls this when the replica stops, and waits until the drain's deadline."""
        await self._stop.aclose()

    def record_replica_metadata(self) -> dict[str, str]:
        """Return the data plane's address and token, and the model's identity, for the ingress."""
        return {
            "address": self._data_plane.address,
            "token": self._data_plane.token,
            "identity": self._engine.model_identity,
        }

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return this replica's `EngineSignals` and identity, which Ray passes to the autoscaling policy.

        A coroutine runs on the event loop that counts the steps. Ray would call a plain method in a thread.
        """
        plane = self._data_plane
        signals = self._engine.report.take(plane.open_requests)
        signals = replace(signals, background_ongoing_requests=float(plane.open_background_requests))
        self._metrics.count_steps(signals)
        return {**asdict(signals), ENGINE_IDENTITY: identity_number(self._startup.engine_identity)}

    async def check_health(self) -> None:
        """Raise RuntimeError once the engine core is gone or hangs; Ray then replaces the replica."""
        found: dict[str, str] = {}
        try:
            await self._health.check()
        except RuntimeError as error:
            cause = ENGINE_DIED if self._engine.llm.errored else ENGINE_HUNG
            found = {"cause": cause, "trouble": self._health.trouble() or str(error)}
            raise
        finally:
            before = self._startup.about  # after the check, during which the node's end may be announced
            kept = {name: text for name, text in before.items() if name in ("node", "notice_s")}
            self._startup.about = kept | found
            if found.get("cause") != before.get("cause"):  # it outlives this replica, which Ray may kill
                await self._ask(_PHASE, self._startup.publish_readiness)

    async def _drain(self) -> None:
        if self._meter is not None:
            self._meter.drain()
        now = time.time()
        until = now + self._model.drain_timeout_s  # Ray's own deadline, which began a little earlier
        if self._is_preemptible:
            await self._node_watch.look()  # the drain may be the first that this replica hears of its end
        document = {"phase": DRAINING, "since": now, "until": until, "durations_s": {}}
        document |= {**self._startup.kind, **self._startup.about}
        await self._ask(_PHASE, partial(publish_phase, *self._replica, json.dumps(document)))
        await self._data_plane.drain()
        await self._data_plane.stop()

    async def _stop_engine(self) -> None:
        """Stop the engine while Ray starts a process for the replica that gets this place."""
        spare = asyncio.create_task(self._ask(_SPARE, start_spare_here)) if env.ZYGOTE in os.environ else None
        await asyncio.sleep(0.0)  # the call begins in a thread of its own
        self._engine.shutdown()
        logger.info("model %s: engine of process %d stopped", self._model.name, os.getpid())
        if spare is not None:
            await spare

    async def _forget_phase(self) -> None:
        if not self._startup.failed and "cause" not in self._startup.about:  # the policy counts a loss
            await self._ask(_PHASE, partial(forget_phase, *self._replica))

    async def _ask(self, what: str, call: Callable[[], None]) -> None:
        """Call Ray for 1 s at most: if Ray does not answer, running streams must not wait."""
        await BoundedCall(what, call, 0.0).get(_RAY_WAIT_S)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` until the replica has drained."""
        self._stop.callback(asyncio.create_task(work).cancel)

    async def _sample_gauges(self) -> None:
        limits = self._engine.limits()
        while True:
            self._metrics.set_limits(limits)
            self._metrics.set_gauges(self._engine.report.gauges())
            self._metrics.publish_histograms()
            await asyncio.sleep(_GAUGE_INTERVAL_S)
