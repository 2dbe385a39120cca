"""vLLM's first model runner, for the processes of workers that go on with other engines' sequences.

The second model runner is sent prompts and outputs apart, for sequences that go on after a preemption.
"""

from serve_app.engine.continued_core import delivered_count
from serve_app.patches.vllm import split_prompts_in_workers


class ContinuingWorker:
    """A worker extension that adds nothing: because of it, every worker imports this module."""


split_prompts_in_workers(delivered_count)
