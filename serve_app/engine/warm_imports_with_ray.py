"""What the process of an engine imports of ours while it starts, for a zygote to import with Ray."""

import serve_app.engine.arguments
import serve_app.engine.engine_deployment
import serve_app.engine.engine_report
import serve_app.engine.grammar.install
import serve_app.engine.local_client
import serve_app.engine.request_record
import serve_app.engine.serving
import serve_app.engine.step_metrics  # noqa: F401
from serve_app.patches.vllm import find_ray_again

find_ray_again()
