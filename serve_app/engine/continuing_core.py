"""How an engine core continues a sequence that another engine began.

After a preemption, vLLM continues a sequence with its generated tokens. The scheduler, penalties, grammars
and budgets then keep prompt and outputs apart. A new request, however, has a prompt only. So a continued
request carries its delivered tokens at the end of its prompt, and their number under the key `DELIVERED`. In
the engine core, a custom scheduler and a worker extension turn these tokens into outputs again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from serve_app.engine.lane_scheduler import LaneScheduling
from serve_app.patches.torch import permit_amx
from serve_app.patches.vllm import (
    compute_adapters_apart,
    free_shared_memory_early,
    split_prompts_in_workers,
)

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = logging.getLogger("ray.serve")

DELIVERED = "tideserve_delivered"
"""The key in `SamplingParams.extra_args` for the number of output tokens at the prompt's end."""


def let_core_continue(config: VllmConfig) -> None:
    """Have the engine core of `config` continue sequences of other engines.

    A configured scheduler or worker extension stays in place, and `core_continues` then returns False.
    """
    scheduler, parallel = config.scheduler_config, config.parallel_config
    if scheduler.scheduler_cls is not None or parallel.worker_extension_cls:
        logger.warning(
            "This engine cannot continue the streams of a lost engine, because the configuration has its own "
            "scheduler_cls or worker_extension_cls."
        )
        return
    scheduler.scheduler_cls = _SCHEDULERS[bool(scheduler.async_scheduling)]
    # The second model runner receives prompts and outputs apart. Ray's workers are no forks of a zygote.
    if not config.use_v2_model_runner or parallel.use_ray:
        parallel.worker_extension_cls = _path(ContinuingWorker)


def let_workers_check(config: VllmConfig) -> None:
    """Have every worker of `config` refuse an adapter that it cannot apply in full (`checking_worker`).

    Raises:
        ValueError: the configuration has a worker extension of its own.
    """
    if (own := config.parallel_config.worker_extension_cls) not in ("", _path(ContinuingWorker)):
        raise ValueError(f"worker_extension_cls = {own!r}: `lora` needs the place for the check of adapters")
    config.parallel_config.worker_extension_cls = "serve_app.engine.checking_worker.CheckingWorker"


def core_continues(config: VllmConfig) -> bool:
    """Return whether the engine core of `config` continues sequences of other engines."""
    return config.scheduler_config.scheduler_cls in _SCHEDULERS.values()


def delivered_count(params: Any) -> int:
    """Return the number of output tokens at the end of a prompt, from the sampling parameters."""
    extra = params.extra_args if params is not None else None
    return int(extra.get(DELIVERED, 0)) if extra else 0


class ContinuingScheduler(LaneScheduling):
    """vLLM's synchronous scheduler, which also knows lanes and accepts continued sequences."""

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        return _separate_outputs(self, super().schedule(*args, **kwargs))


class ContinuingAsyncScheduler(LaneScheduling, AsyncScheduler):  # type: ignore[misc]
    """vLLM's asynchronous scheduler, which also knows lanes and accepts continued sequences."""

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        return _separate_outputs(self, super().schedule(*args, **kwargs))


class ContinuingWorker:
    """A worker extension without methods: because of it, every worker imports this module."""


split_prompts_in_workers(delivered_count)
# For workers in processes of their own; `InProcessExecutor` does it too.
compute_adapters_apart()
permit_amx()
free_shared_memory_early()  # a zygote has done it for its forks


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


_SCHEDULERS = {False: _path(ContinuingScheduler), True: _path(ContinuingAsyncScheduler)}
"""By whether scheduling is asynchronous."""


def _separate_outputs(scheduler: Scheduler, step: SchedulerOutput) -> SchedulerOutput:
    # Not when a request arrives: until it is scheduled, vLLM counts all cached tokens as prompt, and its
    # grammar may not be compiled yet.
    for data in step.scheduled_new_reqs:
        request = scheduler.requests[data.req_id]
        count = delivered_count(request.sampling_params)
        if count and not request.num_output_tokens:
            _split_request(request, count, scheduler)
            if scheduler.use_v2_model_runner:
                data.prompt_token_ids = request.prompt_token_ids  # `data` also has all tokens
    return step


def _split_request(request: Request, count: int, scheduler: Scheduler) -> None:
    """Turn the last `count` tokens of a prompt into outputs, as if the engine generated them one by one."""
    delivered = request.prompt_token_ids[-count:]
    request.prompt_token_ids = request.prompt_token_ids[:-count]
    request.num_prompt_tokens -= count
    del request._all_token_ids[-count:]  # the hashes of the blocks stay: the tokens are the same
    for token in delivered:
        request._all_token_ids.append(token)
        request._output_token_ids.append(token)
        if not scheduler.structured_output_manager.accept_tokens(request, [token]):
            # The request ends with an error in this step, as if its grammar did not compile.
            scheduler.grammar_compile_error_reqs.add(request.request_id)
            request._output_token_ids[:] = delivered
            request._all_token_ids[:] = [*request.prompt_token_ids, *delivered]
            break
