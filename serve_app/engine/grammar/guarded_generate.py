"""An engine's `generate`, which admits a structured output only after its trial."""

from collections.abc import AsyncGenerator
from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.outputs import RequestOutput
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM

from serve_app.engine.grammar.guard import GrammarGuard
from serve_app.patches.vllm import Method, wrap_generate

_DEAD_END = "no text that matches this structured output begins as the text generated so far does"


def guard_generate(llm: AsyncLLM, guard: GrammarGuard) -> None:
    """Have `llm.generate` ask `guard` before it begins a request with a structured output."""
    wrap_generate(llm, lambda stock: _guarded(stock, guard))


def _guarded(stock: Method, guard: GrammarGuard) -> Method:
    async def guarded(
        prompt: Any, sampling_params: SamplingParams, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        assert sampling_params.structured_outputs is not None
        await guard.admit(sampling_params.structured_outputs)
        outputs = stock(prompt, sampling_params, *args, **kwargs)
        try:
            async for output in outputs:
                # The core ends a request with "error" if its grammar accepts no token. vLLM reports a server
                # error, but the grammar is the client's, with a dead end that the trial did not meet.
                if any(completion.finish_reason == "error" for completion in output.outputs):
                    raise VLLMValidationError(_DEAD_END, parameter="structured_outputs")
                yield output
        finally:
            await outputs.aclose()

    def generate(prompt: Any, sampling_params: SamplingParams, *args: Any, **kwargs: Any) -> Any:
        # Other requests keep vLLM's own generator: one more would cost time per token.
        start = stock if sampling_params.structured_outputs is None else guarded
        return start(prompt, sampling_params, *args, **kwargs)

    return generate
