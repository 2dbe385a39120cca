"""Bring a sequence of vLLM's front end to where another engine's was, and its engine core with it."""

from copy import copy
from typing import Any

import numpy as np
from vllm.outputs import RequestOutput
from vllm.v1.engine import FinishReason
from vllm.v1.outputs import LogprobsLists


def advance(
    state: Any, request: Any, delivered: list[int], tokens_an_output: int, max_model_len: int
) -> list[RequestOutput]:
    """Bring `state`, of a sequence that vLLM has just taken, to the end of the `delivered` tokens.

    `request`, which the engine core is then sent, has it prefill them. If they end the answer, the core
    generates one token for nothing.

    Returns:
        What vLLM would have handed out with them. The last output is finished if they end the answer.
    """
    outputs: list[RequestOutput] = []
    reason, stopped_by = _end_of(delivered, request, max_model_len)
    state.stream_interval, interval = 1, state.stream_interval
    for start in range(0, len(delivered), tokens_an_output):
        tokens = delivered[start : start + tokens_an_output]
        last = start + len(tokens) == len(delivered)
        stop = state.detokenizer.update(tokens, last and reason is FinishReason.STOP)
        if stop:
            last, reason, stopped_by = True, FinishReason.STOP, stop
        if state.logprobs_processor.logprobs is not None:
            state.logprobs_processor._update_sample_logprobs(_unknown_logprobs(tokens))
        ending = (reason, stopped_by) if last else (None, None)
        outputs.append(state.make_request_output(tokens, None, *ending))
        if last:
            break
    state.stream_interval = interval
    state.sent_tokens_offset = state.detokenizer.num_output_tokens()
    _lengthen(request, state, delivered[:-1] if outputs[-1].finished else delivered)
    return outputs


def _lengthen(request: Any, state: Any, prefilled: list[int]) -> None:
    """Have the engine core prefill `prefilled` behind the prompt, and generate as much less."""
    request.prompt_token_ids = [*request.prompt_token_ids, *prefilled]
    request.sampling_params = params = copy(request.sampling_params)
    params.max_tokens = max(1, params.max_tokens - len(prefilled))
    params.min_tokens = max(0, params.min_tokens - len(prefilled))
    state.prompt_len += len(prefilled)  # what the core is busy with and has in its KV cache


def _end_of(
    delivered: list[int], request: Any, max_model_len: int
) -> tuple[FinishReason | None, int | str | None]:
    """Why the engine core has ended the answer with the last delivered token, and at which stop token."""
    params, last = request.sampling_params, delivered[-1]
    if last == params.eos_token_id:
        return FinishReason.STOP, None
    if last in (params.stop_token_ids or ()):
        return FinishReason.STOP, last
    room = min(params.max_tokens, max_model_len - len(request.prompt_token_ids))
    return (FinishReason.LENGTH if len(delivered) >= room else None), None


def _unknown_logprobs(tokens: list[int]) -> LogprobsLists:
    """A row for each of `tokens`, which later ones are decoded behind. No client is sent its figures."""
    ids = np.array(tokens)[:, None]
    return LogprobsLists(ids, np.zeros(ids.shape), np.zeros(len(tokens), dtype=int))
