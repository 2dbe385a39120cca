"""How a sequence gets from vLLM's front end to its engine core: within the core's bounds, or not at all.

The front end registers a sequence, and then packs and sends it. A sequence that was registered and not sent
would be waiting for ever, and its engine be taken for one that hangs. One that the core cannot put into its
arrays would end the core.
"""

import logging
from typing import Any

import vllm.envs as envs
from vllm.exceptions import VLLMValidationError
from vllm.v1.engine.async_llm import AsyncLLM

from serve_app.patches.vllm import Method, wrap_add_request, wrap_send

logger = logging.getLogger("ray.serve")

_UNPACKABLE = (OverflowError, TypeError, ValueError, RecursionError)
"""What MessagePack raises for values of a request that it cannot carry."""
_LONGEST = {
    # Of vLLM's model runner for GPUs (`vllm.v1.worker.gpu.sample.logit_bias`), which raises beyond them.
    "allowed_token_ids": 1024,
    "logit_bias": 1024,
}
_MOST_STOP_TOKENS = 128
"""The same, while `min_tokens` keeps them from being generated."""


def guard_intake(engine: AsyncLLM) -> None:
    """Have `engine` refuse sequences that would end its core, and forget those that do not reach it."""
    processor = engine.output_processor
    bounded = bool(getattr(engine.vllm_config, "use_v2_model_runner", False))

    async def forget(request: Any) -> None:
        state = processor.request_states.get(request.request_id)
        parent = getattr(state, "parent_req", None)
        await engine.abort(request.request_id if parent is None else parent.request_id, internal=True)

    def add_within_bounds(add: Method) -> Method:
        def wrapped(request: Any, *args: Any, **kwargs: Any) -> None:
            if bounded and request.sampling_params is not None:
                check_lists(request.sampling_params)
            try:
                add(request, *args, **kwargs)
            except BaseException:
                processor.abort_requests([request.request_id], internal=True)
                raise

        return wrapped

    def send_or_forget(send: Method) -> Method:
        async def wrapped(request: Any) -> None:
            try:
                await send(request)
            except BaseException as error:  # a client that leaves cancels the call
                await forget(request)
                if isinstance(error, _UNPACKABLE):
                    logger.warning("a request could not be packed for the engine core", exc_info=error)
                    raise VLLMValidationError(
                        f"The engine core cannot be sent this request: {error}"
                    ) from error
                raise

        return wrapped

    wrap_add_request(processor, add_within_bounds)
    wrap_send(engine.engine_core, send_or_forget)


def check_lists(params: Any) -> None:
    """Refuse lists of sampling parameters that vLLM's model runner for GPUs has no room for.

    Raises:
        VLLMValidationError: with the field, its length and the bound.
    """
    for name, most in _LONGEST.items():
        _check_length(name, len(getattr(params, name) or ()), most, "tokens")
    if params.min_tokens > 0:
        stops = len(params.all_stop_token_ids)
        _check_length("stop_token_ids", stops, _MOST_STOP_TOKENS, "tokens with min_tokens")
    bad = sum(map(len, params.bad_words_token_ids or ()))
    most_bad: int = envs.VLLM_MAX_BAD_WORDS_TOTAL_TOKENS
    _check_length("bad_words", bad, most_bad, "tokens, of each word with and without a space")


def _check_length(name: str, length: int, most: int, of: str) -> None:
    if length > most:
        raise VLLMValidationError(f"{name}: {length} {of}; at most {most} are accepted", parameter=name)
