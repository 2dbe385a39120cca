"""What the process of an engine and its core do with vLLM while they start, for a zygote to do before.

Nothing here needs Ray: see `serve_app.zygote.zygote`.
"""

import vllm.v1.engine.async_llm  # noqa: F401
from vllm.utils.argparse_utils import FlexibleArgumentParser

import serve_app.engine.warm_imports_of_core  # noqa: F401
from serve_app.engine.late_imports import FRONT_END, import_early
from serve_app.patches.vllm_compat import make_arg_parser

# vLLM computes once in a process what its arguments are: 0.2 s of CPU.
make_arg_parser(FlexibleArgumentParser())
import_early(FRONT_END)
