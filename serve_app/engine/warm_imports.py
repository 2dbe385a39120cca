"""What the process of an engine and its core import while they start, for a zygote to import before."""

import vllm.v1.engine.async_llm
import vllm.v1.engine.core
from vllm.platforms import current_platform

import serve_app.engine.arguments
import serve_app.engine.engine_report
import serve_app.engine.grammar.install
import serve_app.engine.local_client
import serve_app.engine.request_record
import serve_app.engine.serving
import serve_app.engine.step_metrics  # noqa: F401

if current_platform.is_cpu():
    # 700 modules, imported when the core makes its worker and loads the model: 0.9 s of a slow core. Whether
    # their likes on a GPU leave CUDA alone, which no fork could use, has not been tried.
    import vllm.model_executor.layers.quantization.online.base
    import vllm.v1.worker.cpu_worker  # noqa: F401
