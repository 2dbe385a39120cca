"""What the process of an engine and its core import while they start, for a zygote to import before."""

from contextlib import suppress

import vllm.v1.engine.async_llm
import vllm.v1.engine.core
from vllm.platforms import current_platform
from vllm.utils.argparse_utils import FlexibleArgumentParser

import serve_app.engine.arguments
import serve_app.engine.engine_report
import serve_app.engine.grammar.install
import serve_app.engine.local_client
import serve_app.engine.request_record
import serve_app.engine.serving
import serve_app.engine.step_metrics  # noqa: F401
from serve_app.engine.vllm_compat import make_arg_parser

# vLLM computes once in a process what its arguments are: 0.2 s of CPU.
make_arg_parser(FlexibleArgumentParser())

if current_platform.is_cpu():
    # Whether their likes on a GPU leave CUDA alone, which no fork could use, has not been tried.
    with suppress(ImportError):  # other releases have them elsewhere, and import them later
        # 700 modules, imported when the core makes its worker and loads the model: 0.9 s of a slow core.
        import vllm.model_executor.layers.quantization.online.base
        import vllm.v1.worker.cpu_worker  # noqa: F401

        # To configure logging takes 0.4 s of CPU in each process, because of all the loggers that Ray and
        # torch have. vLLM does it unless this configuration, which follows the environment, is in force.
        from vllm.config.logging import LoggingConfig
        from vllm.logger import configure_logging_if_needed

        configure_logging_if_needed(LoggingConfig())
