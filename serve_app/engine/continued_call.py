"""Calls whose stream another engine began, in vLLM's front end.

vLLM's front end sees the original request, unchanged. The engine core gets the delivered tokens as outputs of
its own (`continuing_core`). vLLM's handlers get them once more as outputs of the engine, so that counts,
parsers, half characters and partial stop strings are right. The events that the handlers make of delivered
tokens are dropped.

Greedy sampling continues with the same token as before, up to rounding: the delivered tokens are prefilled
together, and their keys and values may differ in the last bit. A seeded generator starts anew.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from copy import copy
from typing import Any

import numpy as np
from vllm.outputs import RequestOutput
from vllm.v1.core.sched.utils import check_stop
from vllm.v1.engine import FinishReason
from vllm.v1.outputs import LogprobsLists
from vllm.v1.request import Request

from serve_app.api.dialect import dialect_of
from serve_app.engine.api_errors import not_continuable
from serve_app.engine.continuing_core import DELIVERED
from serve_app.engine.engine_call import EngineCall
from serve_app.wire.data_plane import Call, Continuation

_CREATED = re.compile(rb'"created(_at)?":\d+')  # inside a text the quotes would be escaped
_REPLAYED_PER_TURN = 16
"""Outputs replayed before other streams get a turn. vLLM's own encoder takes about 0.1 ms for each."""


class ContinuedCall(EngineCall):
    """A call whose stream begins with tokens that were delivered before."""

    def __init__(self, message: Call, begun: Continuation) -> None:
        super().__init__(message)
        self._created = begun.created
        self._dialect = dialect_of(message.operation)
        # The texts of a completion do not depend on the outputs, and at once they cost less.
        whole = message.operation in ("completions", "generate")
        self._before = {
            index: [list(tokens)] if whole else begun.outputs(index)
            for index, tokens in enumerate(begun.tokens)
            if tokens
        }
        """The delivered tokens by sequence, divided as vLLM's handler gets them again."""
        self._replaying = bool(self._before)
        self._replay: list[RequestOutput] = []
        self._ended: set[int] = set()
        """The sequences that ended with their delivered tokens."""
        # A response has the client's tools in its end, and they may have the same field.
        self._most_created = 1 if message.operation == "responses" else 0

    async def outputs(self, generated: AsyncGenerator[RequestOutput]) -> AsyncGenerator[RequestOutput]:
        """Yield the delivered tokens again, then `generated`, and record its tokens as delivered."""
        try:
            if self._replaying:
                first = await anext(generated)  # vLLM calls `advance` before the first output
                for count, output in enumerate(self._replay):
                    output.num_cached_tokens = min(first.num_cached_tokens or 0, len(first.prompt_token_ids))
                    yield output
                    if count % _REPLAYED_PER_TURN == 0:
                        await asyncio.sleep(0)
                self._replaying = False
                if self._is_new(first):
                    yield first
                    self.record(first)
            async for output in generated:
                if self._is_new(output):
                    yield output
                    self.record(output)
        finally:
            self._replaying = False
            await generated.aclose()

    def _is_new(self, output: RequestOutput) -> bool:
        """Drop tokens that a sequence generated after its end. Returns whether `output` has other tokens."""
        if self._ended:
            output.outputs = [one for one in output.outputs if one.index not in self._ended]
        return bool(output.outputs)

    def forward(self, output: RequestOutput) -> bool:
        """Return False: all events go through `new_frames`, which replaces their `created`."""
        return False

    def advance(self, request: Any, state: Any, max_model_len: int) -> None:
        """Bring a sequence that vLLM has just registered to the end of its delivered tokens."""
        index = state.request_index
        delivered = self._before.get(index)
        if not self._replaying or self.delivered is None or delivered is None:
            return
        outputs = _advance(state, request, delivered, max_model_len)
        self._replay += outputs
        if outputs[-1].outputs[0].finished():
            self._ended.add(index)

    async def new_frames(self, frames: AsyncIterator[str | bytes]) -> AsyncGenerator[bytes]:
        """Yield a handler's frames that were not delivered yet, with the `created` of the first engine.

        Raises:
            ApiError: 409, if the stream cannot be continued.
        """
        try:
            async for frame in frames:
                data = frame if isinstance(frame, bytes) else frame.encode()
                # Known once vLLM has started to generate.
                if self.delivered is None and not data.startswith(self._dialect.prelude):
                    raise not_continuable()
                if self._replaying and not data.startswith(self._dialect.error_frame):
                    continue
                if self._created:
                    data = _CREATED.sub(rb'"created\1":%d' % self._created, data, self._most_created)
                yield data
        finally:
            if hasattr(frames, "aclose"):
                await frames.aclose()


def _advance(state: Any, request: Any, parts: list[list[int]], max_model_len: int) -> list[RequestOutput]:
    """Bring the front end's `state` of a new sequence to the end of its delivered tokens.

    `request` then goes to the engine core with these tokens at the end of its prompt. If the tokens end the
    answer, the core generates one superfluous token.

    Args:
        parts: The delivered tokens, divided into outputs.

    Returns:
        The outputs that vLLM makes of the tokens. The last output is finished if the tokens end the answer.
    """
    outputs: list[RequestOutput] = []
    delivered = [token for tokens in parts for token in tokens]
    reason, stopped_by = _end_of(request, delivered, max_model_len)
    state.stream_interval, interval = 1, state.stream_interval
    for number, tokens in enumerate(parts, 1):
        last = number == len(parts)
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
        state.parent_req.child_requests.add(state.request_id)  # the superfluous token will remove it again
    _lengthen_prompt(request, state, delivered[:-1] if ended else delivered)
    if ended:
        request.sampling_params.max_tokens = len(delivered)
    return outputs


def _lengthen_prompt(request: Any, state: Any, delivered: list[int]) -> None:
    request.prompt_token_ids = [*request.prompt_token_ids, *delivered]
    request.sampling_params = params = copy(request.sampling_params)
    params.extra_args = {DELIVERED: len(delivered)}
    state.prompt_len += len(delivered)  # the core prefills these tokens and caches them


def _end_of(
    request: Any, delivered: list[int], max_model_len: int
) -> tuple[FinishReason | None, int | str | None]:
    """Return why the last delivered token ends the answer, and the stop that matched; None if it does not."""
    sequence = Request.from_engine_core_request(request, None)
    sequence.append_output_token_ids(delivered)
    if not check_stop(sequence, max_model_len):
        return None, None
    return sequence.get_finished_reason(), sequence.stop_reason


def _unknown_logprobs(tokens: list[int]) -> LogprobsLists:
    """Return a row for each of `tokens`, which decoding later tokens needs. No client receives the rows."""
    ids = np.array(tokens)[:, None]
    return LogprobsLists(ids, np.zeros(ids.shape), np.zeros(len(tokens), dtype=int))
