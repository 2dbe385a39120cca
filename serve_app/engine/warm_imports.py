"""vLLM's imports and first calls of an engine's start, which a zygote makes in advance.

The zygote calls these functions by name. `import_front_end` and `import_core` need no Ray, because the zygote
calls both before it can import Ray (`serve_app.zygote.zygote`).
"""

from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module

_SERVING_LAYER = (
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
"""vLLM imports these modules when its serving layer is mounted: 0.3 s of CPU."""
_CORE_ON_CPU = (
    "vllm.model_executor.layers.quantization.online.base",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.worker.cpu_worker",
    "vllm.distributed.elastic_ep.elastic_execute",
    "vllm.v1.pool.flash_maxsim",
)
"""An engine core on a CPU imports these modules when it starts its worker and loads the model: 0.9 s of a
slow core. The modules for a GPU are untested: they might initialize CUDA, which no fork could use."""
_WITH_RAY = (
    "serve_app.engine.arguments",
    "serve_app.engine.engine_deployment",
    "serve_app.engine.first_runs",
    "serve_app.engine.grammar.guard",
    "serve_app.engine.local_client",
    "serve_app.engine.step_statistics",
)


def import_front_end() -> None:
    """Import vLLM for the process of an engine and for its core."""
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415

    from serve_app.patches.vllm_compat import make_arg_parser  # noqa: PLC0415

    import_module("vllm.v1.engine.async_llm")
    import_core()
    make_arg_parser(FlexibleArgumentParser())  # fills a cache of vLLM: 0.2 s of CPU
    import_serving_layer()


def import_core() -> None:
    """Import vLLM for an engine core."""
    import_module("vllm.v1.engine.core")
    from vllm.platforms import current_platform  # noqa: PLC0415

    from serve_app.patches.vllm import free_shared_memory_early, register_kernels_once  # noqa: PLC0415

    free_shared_memory_early()
    if not current_platform.is_cpu():
        return
    _import(_CORE_ON_CPU)
    register_kernels_once()
    with suppress(ImportError):
        # The setup of logging takes 0.4 s of CPU in each process, because of the loggers of Ray and torch.
        # vLLM skips it if this configuration, which depends on the environment, is already in force.
        from vllm.config.logging import LoggingConfig  # noqa: PLC0415
        from vllm.logger import configure_logging_if_needed  # noqa: PLC0415

        configure_logging_if_needed(LoggingConfig())


def import_serving_layer() -> None:
    """Import the modules of vLLM's serving layer."""
    _import(_SERVING_LAYER)


def import_with_ray() -> None:
    """Import Tideserve's engine modules, which need Ray. Call this after `import_front_end`."""
    for name in _WITH_RAY:
        import_module(name)
    from serve_app.patches.vllm import find_ray_again  # noqa: PLC0415

    find_ray_again()


def _import(names: Iterable[str]) -> None:
    for name in names:
        with suppress(ImportError):  # other releases of vLLM have moved some modules
            import_module(name)
