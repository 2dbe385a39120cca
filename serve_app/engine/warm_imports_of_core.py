"""What an engine core does with vLLM while it starts, for a process that it is forked from to do before.

Nothing here needs Ray: see `serve_app.zygote.zygote`.
"""

from contextlib import suppress

import vllm.v1.engine.core  # noqa: F401
from vllm.platforms import current_platform

from serve_app.engine.late_imports import CORE_ON_CPU, import_early


def _register_kernels_once() -> None:
    """Have vLLM replace its Triton kernels by those for CPUs now, and not in each engine core: 0.3 s of CPU.

    To register them again would do it all over, with a warning for each.
    """
    with suppress(AttributeError):  # other releases have no such method
        current_platform.register_triton_kernel_overrides()
        current_platform.register_triton_kernel_overrides = lambda: None


if current_platform.is_cpu():
    import_early(CORE_ON_CPU)
    _register_kernels_once()
    with suppress(ImportError):
        # To configure logging takes 0.4 s of CPU in each process, because of all the loggers that Ray and
        # torch have. vLLM does it unless this configuration, which follows the environment, is in force.
        from vllm.config.logging import LoggingConfig
        from vllm.logger import configure_logging_if_needed

        configure_logging_if_needed(LoggingConfig())
