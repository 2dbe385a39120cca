"""What the process of an engine and its core import while they start, for a zygote to import before."""

import vllm.v1.engine.async_llm
import vllm.v1.engine.core  # noqa: F401

import serve_app.engine.arguments
import serve_app.engine.engine_report
import serve_app.engine.grammar.install
import serve_app.engine.local_client
import serve_app.engine.request_record
import serve_app.engine.serving
import serve_app.engine.step_metrics  # noqa: F401
