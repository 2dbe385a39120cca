"""Start one engine phase by phase, and stop it."""

from __future__ import annotations

import asyncio
import gc
import io
import logging
import multiprocessing
import os
import wave
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from serve_app import env
from serve_app.engine import compile_cache
from serve_app.engine.startup import Startup
from serve_app.gpus import lacking_memory, wait_for_memory
from serve_app.ledger.meter import UsageMeter
from serve_app.settings.tree import ModelSettings
from serve_app.telemetry.replica_metrics import EngineLimits, EngineMetrics
from serve_app.telemetry.request_log import RequestLog
from serve_app.weights.adapter_store import AdapterStore, adapter_folder
from serve_app.weights.model_identity import model_identity
from serve_app.zygote.zygote import collector_off

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

    from serve_app.engine.adapters import Adapters
    from serve_app.engine.first_runs import FirstRuns
    from serve_app.engine.grammar.guard import GrammarGuard
    from serve_app.engine.local_client import LocalEngine
    from serve_app.engine.step_statistics import EngineReport

logger = logging.getLogger("ray.serve")

_SHUTDOWN_TIMEOUT_S = 10.0
_COLLECT_AFTER = (20_000, 2, 2)
"""A step of 1,024 streams makes some 8,000 containers that live until its message is sent. With Python's
default threshold of 700 the collector searches them repeatedly. With this threshold a token costs this
process 15 % less CPU. A full collection comes after 80,000 new objects, by default after 70,000."""


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """A started engine, with the parts that its replica uses."""

    llm: AsyncLLM
    client: LocalEngine
    report: EngineReport
    first_runs: FirstRuns
    model_identity: str
    """Only engines of the same identity continue each other's streams; see `weights.model_identity`."""
    guard: GrammarGuard | None = None
    adapters: Adapters | None = None
    """None if the engine was started without LoRA."""

    def limits(self) -> EngineLimits:
        """Return the engine's batch limits, as vLLM has set them."""
        config = self.llm.vllm_config
        return EngineLimits(
            config.cache_config.kv_cache_size_tokens or 0,
            config.scheduler_config.max_num_seqs,
            config.scheduler_config.max_num_batched_tokens,
        )

    @property
    def prefix_cache_tokens(self) -> int | None:
        """Size of the prefix cache: 0 without one, None if vLLM does not report it."""
        cache = self.llm.vllm_config.cache_config
        return cache.kv_cache_size_tokens if cache.enable_prefix_caching else 0

    def loaded_adapters(self) -> tuple[list[str], float]:
        """Return the names of the loaded adapters, and the seconds for which a load occupies the engine."""
        return ([], 0.0) if self.adapters is None else (self.adapters.names(), self.adapters.load_s)

    def shutdown(self) -> None:
        """Stop the engine core and its workers, and wait until they have ended."""
        if self.guard is not None:
            self.guard.stop()
        self.llm.shutdown(timeout=_SHUTDOWN_TIMEOUT_S)


async def launch(
    model: ModelSettings,
    metrics: EngineMetrics,
    startup: Startup,
    request_log: RequestLog | None,
    meter: UsageMeter | None = None,
) -> RunningEngine:
    """Load `model`, and send one warm-up request before the engine is ready.

    Raises:
        ImportError: the installed vLLM lacks something that the engine needs.
        ValueError: from vLLM, for an invalid argument.
        RuntimeError: from vLLM, if the engine core does not start.
    """
    env.find_compilers(os.environ)
    with startup.phase("imports"), collector_off():
        # These imports take seconds, and only the process of an engine needs them.
        from serve_app.patches.vllm_compat import lacking, name_missing_imports, unchecked  # noqa: PLC0415

        with name_missing_imports():
            from vllm import __version__  # noqa: PLC0415
            from vllm.envs import enable_envs_cache  # noqa: PLC0415
            from vllm.v1.engine.async_llm import AsyncLLM  # noqa: PLC0415
            from vllm.v1.metrics.ray_wrappers import RayPrometheusStatLogger  # noqa: PLC0415

            from serve_app.engine.adapters import Adapters  # noqa: PLC0415
            from serve_app.engine.arguments import engine_config, vllm_namespace  # noqa: PLC0415
            from serve_app.engine.chat_operations import Serving  # noqa: PLC0415
            from serve_app.engine.first_runs import FirstRuns  # noqa: PLC0415
            from serve_app.engine.grammar.guard import guard_grammars  # noqa: PLC0415
            from serve_app.engine.local_client import LocalEngine  # noqa: PLC0415
            from serve_app.engine.sequence_lanes import SequenceLanes  # noqa: PLC0415
            from serve_app.engine.step_statistics import EngineReport, StepStats  # noqa: PLC0415
            from serve_app.engine.warm_imports import import_serving_layer  # noqa: PLC0415
        import_serving_layer()  # in parallel with the engine core's imports, which take longer
    gc.freeze()  # imported objects stay: each collection would search them for 0.3 s
    gc.set_threshold(*_COLLECT_AFTER)
    startup.hint = unchecked()
    for sentence in filter(None, (startup.hint, lacking())):
        logger.warning("model %s: %s", model.name, sentence)

    if os.environ.get(env.ZYGOTE_SOCKET):
        resource_tracker.ensure_running()  # started before the change below, because plain Python is enough
        multiprocessing.set_executable(env.PYTHON)  # forks the engine core from the zygote
    lanes = SequenceLanes()
    stats = StepStats(metrics, lanes, more_loggers=model.vllm_metrics)
    shared = os.environ.get(env.COMPILE_CACHE)
    archive = compile_cache.archive_of(shared, __version__, model.name) if shared else None
    with startup.phase("configuration"):
        if archive is not None:
            compile_cache.fetch(archive, Path.home())
        namespace = vllm_namespace(model)
        config = engine_config(namespace)
    if model.device == "gpu":
        here = 1 if model.spans_nodes else model.ranks
        with startup.phase("gpu_memory"):
            lacking_here = partial(lacking_memory, model.gpu_memory_utilization, here)
            await asyncio.to_thread(wait_for_memory, lacking_here)
    # In a thread, in parallel with the engine core, which reads the same files and takes longer.
    identity = asyncio.get_running_loop().run_in_executor(None, model_identity, model)
    loggers: list[Any] = [lambda *_: stats, *((RayPrometheusStatLogger,) if model.vllm_metrics else ())]
    with startup.phase("weights_and_kv_cache"):
        llm = AsyncLLM.from_vllm_config(
            config, stat_loggers=loggers, disable_log_stats=namespace.disable_log_stats
        )
    enable_envs_cache()  # as the core does, because vLLM reads a variable for each token
    guard: GrammarGuard | None = None
    try:
        with startup.phase("serving_layer"):
            serving = await Serving.mount(llm, namespace, lanes)
            guard = guard_grammars(llm, model.structured_output) if model.task == "generate" else None
            adapters = None
            if (bounds := model.lora) is not None:
                store = AdapterStore(adapter_folder(model.name, os.environ), bounds.max_bytes)
                adapters = Adapters(llm, serving.adapters, bounds, store, metrics.count_adapter_load)
            client = LocalEngine(
                serving, model, metrics.count_error, metrics.count_call, await identity, adapters
            )
        with startup.phase("warm_up"):
            first_runs = FirstRuns(llm, model)
            await _warm_up(client, model)
            await first_runs.warm_up(client)
        if archive is not None:
            # In a thread, because requests must not wait for a slow volume.
            Thread(target=compile_cache.store, args=(archive, Path.home()), daemon=True).start()
        # Only now, so that signals, logs and usage do not include the warm-up.
        report = stats.report = EngineReport.of(llm, lanes)
        client.request_log = request_log
        if meter is not None:
            meter.serve(llm.output_processor.request_states)
            stats.meter = client.meter = meter
    except BaseException:
        if guard is not None:
            guard.stop()
        llm.shutdown(timeout=_SHUTDOWN_TIMEOUT_S)
        raise
    return RunningEngine(llm, client, report, first_runs, await identity, guard, adapters)


async def _warm_up(client: LocalEngine, model: ModelSettings) -> None:
    """Send one request through the engine, so that no client waits for lazy initialization."""
    from serve_app.api.upload import speech_body  # noqa: PLC0415
    from serve_app.engine.first_runs import own_call  # noqa: PLC0415

    if model.task == "transcribe":
        silence = io.BytesIO()
        with wave.open(silence, "wb") as file:
            file.setparams((1, 2, 16_000, 0, "NONE", ""))
            file.writeframes(bytes(32_000))  # a second
        body = speech_body({"max_completion_tokens": 2}, silence.getvalue())
        call = own_call("transcriptions", body)
    elif model.task == "generate":
        call = own_call("generate", b'{"prompt":"warm","max_tokens":2}')
    else:  # every pooling model has this operation
        call = own_call("pooling", b'{"input":"warm"}')
    async with client.call(call):
        pass
