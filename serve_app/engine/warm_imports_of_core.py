"""What an engine core does with vLLM while it starts, for a process that it is forked from to do before.

Nothing here needs Ray: see `serve_app.zygote.zygote`.
"""

from contextlib import suppress

import vllm.v1.engine.core  # noqa: F401
from vllm.platforms import current_platform

from serve_app.engine.late_imports import CORE_ON_CPU, import_early
from serve_app.patches.vllm import register_kernels_once

if current_platform.is_cpu():
    import_early(CORE_ON_CPU)
    register_kernels_once()
    with suppress(ImportError):
        # To configure logging takes 0.4 s of CPU in each process, because of all the loggers that Ray and
        # torch have. vLLM does it unless this configuration, which follows the environment, is in force.
        from vllm.config.logging import LoggingConfig
        from vllm.logger import configure_logging_if_needed

        configure_logging_if_needed(LoggingConfig())
