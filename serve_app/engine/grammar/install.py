"""Put a `GrammarGuard` in front of an engine, instead of the checks that vLLM runs on the event loop."""

from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.utils.gc_utils import freeze_gc_heap
from vllm.v1.engine.async_llm import AsyncLLM

from serve_app.engine.grammar.guard import GrammarGuard, trial_work
from serve_app.engine.grammar.guarded_generate import guard_generate
from serve_app.engine.grammar.trial import Trial
from serve_app.engine.vllm_compat import check_json_nesting, structural_tag_module
from serve_app.settings.tree import StructuredOutputSettings

_validate = SamplingParams._validate_structured_outputs


def guard_grammars(llm: AsyncLLM, bounds: StructuredOutputSettings) -> GrammarGuard:
    """Let a structured output into `llm` only after its trial.

    vLLM parses a grammar on the event loop: a regular expression for up to 5 s, any other without a bound.
    A grammar that has passed its trial is not parsed again in this process.
    """

    def make() -> Trial:
        config = llm.vllm_config  # and the tokenizer that the engine core gives to its backend
        return Trial(config, cached_tokenizer_from_config(model_config=config.model_config), _validate)

    guard = GrammarGuard(trial_work(make), bounds)
    freeze_gc_heap()  # a collection writes to every object, and 150 MiB would no longer be shared
    guard.start()
    guard_generate(llm, guard)
    SamplingParams._validate_structured_outputs = _already_validated
    structural_tag_module.validate_structural_tag_payload = _tag_not_compiled
    return guard


def _already_validated(self: SamplingParams, model: Any, config: Any, tokenizer: Any) -> None:
    given = self.structured_outputs
    if given is not None and given._backend is None:
        _validate(self, model, config, tokenizer)


def _tag_not_compiled(payload: Any, *, parameter: str) -> None:
    """vLLM compiles a structural tag while it parses a body; the trial will."""
    if not isinstance(payload, str) or not payload:
        raise VLLMValidationError(f"Invalid {parameter} structural_tag specification.", parameter=parameter)
    check_json_nesting(payload, structural_tag=True)
