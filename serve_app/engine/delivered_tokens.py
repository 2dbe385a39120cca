"""Bring a sequence of vLLM's front end to where another engine's was, and its engine core with it."""

from copy import copy
from typing import Any

import numpy as np
from vllm.outputs import RequestOutput
from vllm.v1.core.sched.utils import check_stop
from vllm.v1.engine import FinishReason
from vllm.v1.outputs import LogprobsLists
from vllm.v1.request import Request

from serve_app.engine.continued_core import DELIVERED


def advance(
    state: Any, request: Any, delivered: list[int], tokens_an_output: int, max_model_len: int
) -> list[RequestOutput]:
    """Bring `state`, of a sequence that vLLM has just taken, to the end of the `delivered` tokens.

    `request`, which the engine core is then sent, has them as outputs. If they end the answer, the core
    generates one token for nothing.

    Returns:
        What vLLM would have handed out with them. The last output is finished if they end the answer.
    """
    outputs: list[RequestOutput] = []
    reason, stopped_by = _end_of(request, delivered, max_model_len)
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
    ended = outputs[-1].outputs[0].finished()
    if ended and state.parent_req is not None:
        state.parent_req.child_requests.add(state.request_id)  # which will end once more
    _lengthen(request, state, delivered[:-1] if ended else delivered)
    if ended:
        request.sampling_params.max_tokens = len(delivered)
    return outputs


def _lengthen(request: Any, state: Any, prefilled: list[int]) -> None:
    """Have the engine core begin with `prefilled` behind the prompt, as outputs."""
    request.prompt_token_ids = [*request.prompt_token_ids, *prefilled]
    request.sampling_params = params = copy(request.sampling_params)
    params.extra_args = {DELIVERED: len(prefilled)}
    state.prompt_len += len(prefilled)  # what the core is busy with and has in its KV cache


def _end_of(
    request: Any, delivered: list[int], max_model_len: int
) -> tuple[FinishReason | None, int | str | None]:
    """Why the engine core has ended the answer with the last delivered token, and what stopped it."""
    sequence = Request.from_engine_core_request(request, None)
    sequence.append_output_token_ids(delivered)
    if not check_stop(sequence, max_model_len):
        return None, None
    return sequence.get_finished_reason(), sequence.stop_reason


def _unknown_logprobs(tokens: list[int]) -> LogprobsLists:
    """A row for each of `tokens`, which later ones are decoded behind. No client is sent its figures."""
    ids = np.array(tokens)[:, None]
    return LogprobsLists(ids, np.zeros(ids.shape), np.zeros(len(tokens), dtype=int))
