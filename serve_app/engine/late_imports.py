"""What vLLM imports late in a start, for whoever has time for it before."""

from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module

FRONT_END = (
    "vllm.entrypoints.anthropic.serving",
    "vllm.entrypoints.generate.api_router",
    "vllm.entrypoints.generate.generative_scoring.serving",
    "vllm.entrypoints.generate.structured_decisions.api_router",
    "vllm.entrypoints.openai.chat_completion.batch_serving",
    "vllm.entrypoints.openai.completion.serving",
    "vllm.entrypoints.openai.responses.serving",
    "vllm.entrypoints.scale_out.derender.serving",
    "vllm.entrypoints.scale_out.render.serving",
    "vllm.entrypoints.scale_out.factories",
    "vllm.entrypoints.scale_out.token_in_token_out.serving",
    "vllm.entrypoints.serve.utils.fingerprint",
)
"""What the serving layer imports when it is mounted: 0.3 s of CPU."""
CORE_ON_CPU = (
    "vllm.model_executor.layers.quantization.online.base",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.worker.cpu_worker",
    "vllm.distributed.elastic_ep.elastic_execute",
    "vllm.v1.pool.flash_maxsim",
)
"""What an engine core imports when it makes its worker and loads the model: 0.9 s of a slow core. Whether
their likes on a GPU leave CUDA alone, which no fork could use, has not been tried."""


def import_early(names: Iterable[str]) -> None:
    """Import `names` now. Other releases of vLLM have some elsewhere, and import them later."""
    for name in names:
        with suppress(ImportError):
            import_module(name)
