"""The Ray Serve deployment around one engine: one replica, one `AsyncLLM`."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from typing import Any

import psutil
import ray
from ray import serve

from serve_app.api.engine_client import EngineRequest, Operation
from serve_app.api.errors import ApiError
from serve_app.cluster.bounded_call import BoundedCall
from serve_app.engine.data_plane import DataPlane
from serve_app.engine.foreign_errors import told_as_runtime_errors
from serve_app.engine.launch import RunningEngine, launch
from serve_app.engine.log_folder import open_request_log
from serve_app.engine.log_handlers import log_handlers_kept
from serve_app.engine.stall import LOOK_INTERVAL_S, StallDetector
from serve_app.engine.startup import Startup, process_seconds
from serve_app.settings.tree import ModelSettings, RequestLogSettings
from serve_app.telemetry.engine_metrics import EngineMetrics
from serve_app.wire.phases import forget_phase, publish_phase

logger = logging.getLogger("ray.serve")

_GAUGE_INTERVAL_S = 1.0
_GCS_WAIT_S = 1.0
ACCEPTED = "accepted"
"""The first item of every call through Ray's handle: the wait for a replica is over. The answer may take as
long as it likes."""


class Engine:
    """Holds the engine of one model on this replica's GPUs.

    Args:
        model: `ModelSettings` as plain data, which is what Ray compares to decide on restarts.
        request_log: `RequestLogSettings`, the same.
    """

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, model: dict[str, Any], request_log: dict[str, Any]
    ) -> None:
        process = process_seconds(psutil.Process().create_time(), time.time())
        self._model = ModelSettings.model_validate(model)
        context = serve.get_replica_context()
        replica = context.replica_tag
        self._metrics = EngineMetrics(self._model.name, replica)
        startup = self._startup = Startup(
            self._model.name,
            lambda document: publish_phase(context.app_name, context.deployment, replica, document),
            durations={"process": process},
        )
        self._request_log = open_request_log(
            RequestLogSettings.model_validate(request_log), context.app_name, context.deployment, replica
        )
        with log_handlers_kept():
            self._engine = await launch(self._model, self._metrics, startup, self._request_log)
        self._stall = StallDetector()
        self._data_plane = DataPlane(self._engine.client, self._trouble)
        with startup.phase("data_plane"):
            await self._data_plane.start(ray.util.get_node_ip_address())
        self._tasks = [
            asyncio.create_task(self._sample_gauges()),
            asyncio.create_task(self._look_for_stalls()),
        ]
        if self._request_log is not None:
            self._tasks.append(asyncio.create_task(self._request_log.keep_writing()))
        startup.finish()

    def record_replica_metadata(self) -> dict[str, str]:
        """What Ray tells the ingress of this replica: where its data plane is, and the key to it."""
        return {"address": self._data_plane.address, "token": self._data_plane.token}

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What Ray tells the autoscaling policy of this replica, every second: `EngineSignals`.

        A coroutine so that it runs on the loop the steps are counted on; what is not one, Ray calls in a
        thread.
        """
        signals = self._engine.report.take(self._data_plane.open_requests)
        self._metrics.count_steps(signals)
        return asdict(signals)

    async def call(
        self, operation: Operation, body: bytes, request_id: str, waited_s: float, held_s: float
    ) -> AsyncIterator[Any]:
        """The data plane through Ray's handle: `ACCEPTED`, `(status, content type, headers)`, then bytes."""
        yield ACCEPTED
        request = EngineRequest(operation, body, request_id, waited_s, held_s=held_s)
        with told_as_runtime_errors():
            try:
                async with self._engine.client.call(request) as reply:
                    yield reply.status, reply.content_type, dict(reply.headers)
                    if reply.stream is None:
                        yield reply.body
                        return
                    async for chunk in reply.stream:
                        yield chunk
            except ApiError as error:
                yield error.status, "application/json", error.headers
                yield error.body()

    async def check_health(self) -> None:
        """Raises RuntimeError once the engine core is gone or hangs; Ray then replaces the replica."""
        with told_as_runtime_errors():
            await self._engine.llm.check_health()
        if self._stall.hung(self._model.engine_hang_timeout_s):
            raise RuntimeError(self._trouble())

    def _trouble(self) -> str:
        """Why requests had better go to another replica, or "" if this one can take them."""
        if self._engine.llm.errored:
            return "its engine core has died"
        if self._stall.noticed:
            return (
                f"its engine has taken no step for {self._stall.stalled_s:.0f} s, "
                f"with {self._engine.report.unfinished} sequences to work on"
            )
        return ""

    async def __del__(self) -> None:
        """Ray calls this when the replica stops, and waits for it as long as the drain may take."""
        context = serve.get_replica_context()
        place = (context.app_name, context.deployment, context.replica_tag)
        data_plane: DataPlane | None = getattr(self, "_data_plane", None)
        if data_plane is not None:
            now = time.time()
            until = now + self._model.drain_timeout_s  # Ray's patience, which began a little earlier
            drain = {"phase": "draining", "since": now, "until": until, "durations_s": {}}
            await self._store(lambda: publish_phase(*place, json.dumps(drain)))
            await data_plane.drain()
            await data_plane.stop()
        for task in getattr(self, "_tasks", []):
            task.cancel()
        request_log = getattr(self, "_request_log", None)
        if request_log is not None:
            await request_log.close()
        engine: RunningEngine | None = getattr(self, "_engine", None)
        if engine is not None:
            engine.shutdown()
            logger.info("model %s: engine of process %d stopped", self._model.name, os.getpid())
        startup: Startup | None = getattr(self, "_startup", None)
        # Ray calls this for a replica that could not start, too.
        if startup is None or not startup.failed:
            await self._store(lambda: forget_phase(*place))

    async def _store(self, call: Callable[[], None]) -> None:
        """A call of Ray's GCS, which may not answer: the streams that still run must not wait for it."""
        await BoundedCall("the phase of this replica", call, 0.0).get(_GCS_WAIT_S)

    async def _sample_gauges(self) -> None:
        limits = self._engine.limits()
        while True:
            self._metrics.set_limits(limits)
            self._metrics.set_gauges(self._engine.report.gauges())
            await asyncio.sleep(_GAUGE_INTERVAL_S)

    async def _look_for_stalls(self) -> None:
        report = self._engine.report
        while True:
            self._stall.look(report.steps_taken, report.unfinished, time.monotonic())
            await asyncio.sleep(LOOK_INTERVAL_S)
