"""The kinds of requests that an engine on a GPU has not run yet, and the warm-up that runs them.

The first request of a kind may compile kernels within an engine step. nvcc can take 192 s for one file of
FlashInfer's sampler on a slow core, and an engine that takes no step for 30 s counts as hanging.
"""

import base64
import json
import logging
from io import BytesIO
from typing import Any

from vllm.v1.engine.async_llm import AsyncLLM

from serve_app.api.engine_client import EngineClient, Operation
from serve_app.api.errors import ApiError
from serve_app.engine.engine_call import EngineCall
from serve_app.patches.vllm import Method, wrap_method
from serve_app.settings.tree import ModelSettings
from serve_app.wire.data_plane import Call

logger = logging.getLogger("ray.serve")

_FIELDS: dict[str, dict[str, Any]] = {
    "top_p and top_k": {"top_p": 0.9, "top_k": 50},
    "min_p": {"min_p": 0.1},
    "logprobs": {"logprobs": 2},
    "penalties": {"repetition_penalty": 1.1, "frequency_penalty": 0.1, "presence_penalty": 0.1},
    "seed": {"seed": 1},
    "grammar": {"structured_outputs": {"choice": ["a", "b"]}},
}
"""Fields of a completion of each kind that models have in common."""


class FirstRuns:
    """Records which kinds of requests `engine`, whose handlers are mounted, has run from now on.

    An engine on a CPU compiles nothing within a step, so nothing is recorded.
    """

    def __init__(self, engine: AsyncLLM, model: ModelSettings) -> None:
        self.left: set[str] = set()
        """The kinds that have not run."""
        self._running: dict[str, tuple[Any, set[str]]] = {}
        """vLLM's states of the unfinished sequences of such kinds, by id."""
        self._states = engine.output_processor.request_states
        if model.device == "gpu" and model.task == "generate":
            media, adapters = engine.model_config.is_multimodal_model, model.lora is not None
            self.left = {*_FIELDS, *["media"] * media, *["adapter"] * adapters}
            wrap_method(engine.output_processor, "add_request", self._recording)

    def under_way(self) -> bool:
        """Return whether the engine has a sequence of a kind that has not run."""
        for name, (state, kinds) in list(self._running.items()):
            ended = self._states.get(name) is not state
            if state.stats.num_generation_tokens > (0 if ended else 1):  # a prefill, and a decode
                self.left -= kinds
            if ended or not kinds & self.left:
                del self._running[name]
        return bool(self._running)

    async def warm_up(self, client: EngineClient[EngineCall]) -> None:
        """Run each kind but `adapter`, whose files come later. Raises ApiError if the engine has failed."""
        for kind in self.left - {"adapter"}:
            operation: Operation = "completions" if kind in _FIELDS else "chat_completions"
            fields = {"prompt": "warm", **_FIELDS[kind]} if kind in _FIELDS else _chat_with_image()
            body = json.dumps({**fields, "max_tokens": 3, "temperature": 1.0, "ignore_eos": True}).encode()
            try:
                async with client.call(own_call(operation, body)):
                    pass
            except ApiError as error:
                if error.status >= 500:
                    raise
                logger.info("the engine does not run requests with %s: %s", kind, error)
                if kind != "media":  # a model of speech refuses the image, and takes sounds
                    self.left.discard(kind)
        self.under_way()

    def _recording(self, add: Method) -> Method:
        def wrapped(request: Any, *args: Any, **kwargs: Any) -> None:
            add(request, *args, **kwargs)
            if self.left and (kinds := kinds_of(request) & self.left):
                self._running[request.request_id] = (self._states[request.request_id], kinds)

        return wrapped


def own_call(operation: Operation, body: bytes) -> EngineCall:
    """Return a call of the engine replica itself, for its warm-up."""
    return EngineCall(Call(0, operation, body, "warm-up", 0.0, 0.0))


def kinds_of(request: Any) -> set[str]:
    """Return the kinds of a sequence, from vLLM's message to the engine core."""
    if (params := request.sampling_params) is None:
        return set()
    used = {
        "top_p and top_k": params.top_p < 1.0 or params.top_k > 0,
        "min_p": params.min_p > 0.0,
        "logprobs": params.logprobs is not None or params.prompt_logprobs is not None,
        "penalties": params.repetition_penalty != 1.0 or params.frequency_penalty or params.presence_penalty,
        "seed": params.seed is not None,
        "grammar": params.structured_outputs is not None,
        "adapter": request.lora_request is not None,
        "media": bool(request.mm_features),
    }
    return {kind for kind, found in used.items() if found}


def _chat_with_image() -> dict[str, Any]:
    from PIL import Image  # noqa: PLC0415  60 ms

    Image.new("RGB", (64, 64)).save(file := BytesIO(), "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    return {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}
