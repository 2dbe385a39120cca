"""Put a `GrammarGuard` in front of an engine, instead of the checks that vLLM runs on the event loop."""

from vllm.tokenizers import cached_tokenizer_from_config
from vllm.utils.gc_utils import freeze_gc_heap
from vllm.v1.engine.async_llm import AsyncLLM

from serve_app.engine.grammar.guard import GrammarGuard, trial_work
from serve_app.engine.grammar.guarded_generate import guard_generate
from serve_app.engine.grammar.trial import Trial
from serve_app.patches.vllm import skip_structured_output_checks, validate_structured_outputs
from serve_app.settings.tree import StructuredOutputSettings


def guard_grammars(llm: AsyncLLM, bounds: StructuredOutputSettings) -> GrammarGuard:
    """Let a structured output into `llm` only after its trial.

    vLLM parses a grammar on the event loop: a regular expression for up to 5 s, any other without a bound.
    A grammar that has passed its trial is not parsed again in this process.
    """

    def make() -> Trial:
        config = llm.vllm_config  # and the tokenizer that the engine core gives to its backend
        return Trial(
            config,
            cached_tokenizer_from_config(model_config=config.model_config),
            validate_structured_outputs,
        )

    guard = GrammarGuard(trial_work(make), bounds)
    freeze_gc_heap()  # a collection writes to every object, and 150 MiB would no longer be shared
    guard.start()
    guard_generate(llm, guard)
    skip_structured_output_checks()
    return guard
