"""vLLM's first model runner, for the processes of workers that go on with other engines' sequences.

The second model runner is sent prompts and outputs apart, for sequences that go on after a preemption.
"""

from vllm.v1.worker.gpu_input_batch import CachedRequestState

from serve_app.engine.continued_core import delivered_count

_post_init = CachedRequestState.__post_init__


class ContinuingWorker:
    """A worker extension that adds nothing: because of it, every worker imports this module."""


def _take_apart(self: CachedRequestState) -> None:
    """Make the end of a prompt outputs, as the scheduler does."""
    count = delivered_count(self.sampling_params)
    if count:
        self.output_token_ids = self.prompt_token_ids[-count:]
        self.prompt_token_ids = self.prompt_token_ids[:-count]
    _post_init(self)


CachedRequestState.__post_init__ = _take_apart
