"""What the process of an engine and its core do with vLLM while they start, for a zygote to do before.

Nothing here needs Ray: see `serve_app.zygote.zygote`.
"""

from contextlib import suppress
from importlib import import_module

import vllm.v1.engine.async_llm
import vllm.v1.engine.core  # noqa: F401
from vllm.platforms import current_platform
from vllm.utils.argparse_utils import FlexibleArgumentParser

from serve_app.engine.vllm_compat import make_arg_parser

_FRONT_END = (
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
"""What vLLM's serving layer imports when it is mounted: 0.3 s of CPU."""
_CORE_ON_CPU = (
    "vllm.model_executor.layers.quantization.online.base",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.worker.cpu_worker",
    "vllm.distributed.elastic_ep.elastic_execute",
    "vllm.v1.pool.flash_maxsim",
)
"""What an engine core imports when it makes its worker and loads the model: 0.9 s of a slow core. Whether
their likes on a GPU leave CUDA alone, which no fork could use, has not been tried."""


def _import(names: tuple[str, ...]) -> None:
    for name in names:
        with suppress(ImportError):  # other releases have it elsewhere, and import it later
            import_module(name)


def _register_kernels_once() -> None:
    """Have vLLM replace its Triton kernels by those for CPUs now, and not in each engine core: 0.3 s of CPU.

    To register them again would do it all over, with a warning for each.
    """
    with suppress(AttributeError):  # other releases have no such method
        current_platform.register_triton_kernel_overrides()
        current_platform.register_triton_kernel_overrides = lambda: None


# vLLM computes once in a process what its arguments are: 0.2 s of CPU.
make_arg_parser(FlexibleArgumentParser())
_import(_FRONT_END)

if current_platform.is_cpu():
    _import(_CORE_ON_CPU)
    _register_kernels_once()
    with suppress(ImportError):
        # To configure logging takes 0.4 s of CPU in each process, because of all the loggers that Ray and
        # torch have. vLLM does it unless this configuration, which follows the environment, is in force.
        from vllm.config.logging import LoggingConfig
        from vllm.logger import configure_logging_if_needed

        configure_logging_if_needed(LoggingConfig())
