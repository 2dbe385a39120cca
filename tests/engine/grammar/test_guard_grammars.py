import gc
import json
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import TypeAdapter
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams, StructuredOutputsParams

from serve_app.engine.grammar.compiler import GrammarCompiler
from serve_app.engine.grammar.guard import guard_grammars
from serve_app.settings.tree import StructuredOutputSettings
from tests.engine.stub_engine_core import vllm_restored

HOSTILE_TAG = {"type": "structural_tag", "format": {"type": "regex", "pattern": "(.?){500}a{500}"}}


class Llm:
    """An engine that says which parameters vLLM's own check found valid."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self.vllm_config = compiler.config
        self.input_processor = SimpleNamespace(tokenizer=compiler.tokenizer)
        self.closed = False

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str
    ) -> AsyncIterator[Any]:
        copied = sampling_params.clone()
        copied.verify(
            self.vllm_config.model_config,
            None,
            self.vllm_config.structured_outputs_config,
            self.input_processor.tokenizer,
        )
        try:
            yield SimpleNamespace(params=copied, outputs=[SimpleNamespace(finish_reason=None)])
            yield SimpleNamespace(params=copied, outputs=[SimpleNamespace(finish_reason="stop")])
        finally:
            self.closed = True


@pytest.fixture(scope="module")
async def guarded(make_compiler: Callable[[], GrammarCompiler]) -> AsyncIterator[Llm]:
    """Of all tests here, because a frozen heap is one that was collected first, which takes 0.7 s."""
    made = Llm(make_compiler())
    with vllm_restored():
        guard = guard_grammars(made, StructuredOutputSettings())
        yield made
        guard.stop()


@pytest.fixture
def llm(guarded: Llm) -> Llm:
    guarded.closed = False
    return guarded


async def test_a_structured_output_reaches_the_engine_after_its_compile_job(llm: Llm) -> None:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(choice=["ebb", "flow"]))

    outputs = llm.generate("sea", params, "r-1")
    seen = (await anext(outputs)).params.structured_outputs
    await outputs.aclose()

    assert (seen.grammar, seen._backend) == ('root ::= "ebb" | "flow"', "xgrammar")
    assert llm.closed
    assert gc.get_freeze_count() > 100_000  # no collection parts the memory that is shared


async def test_one_that_does_not_pass_never_reaches_it(llm: Llm) -> None:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(grammar="root ::= root"))

    with pytest.raises(VLLMValidationError, match="no text matches"):
        await anext(llm.generate("sea", params, "r-1"))


async def test_other_requests_keep_the_engines_own_generator(llm: Llm) -> None:
    outputs = llm.generate("sea", SamplingParams(), "r-1")

    assert outputs.ag_code is Llm.generate.__code__
    await outputs.aclose()


async def test_nothing_is_compiled_while_a_body_is_parsed(llm: Llm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm.v1.structured_output.backend_xgrammar.validate_xgrammar_grammar", None)
    body = {"model": "a", "messages": [{"role": "user", "content": "a"}], "response_format": HOSTILE_TAG}

    request = TypeAdapter(ChatCompletionRequest).validate_json(json.dumps(body))

    assert request.response_format is not None


async def test_what_is_unchecked_still_meets_the_check_of_vllm(llm: Llm) -> None:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="("))

    with pytest.raises(VLLMValidationError, match="not closed"):
        params._validate_structured_outputs(
            llm.vllm_config.model_config,
            llm.vllm_config.structured_outputs_config,
            llm.input_processor.tokenizer,
        )
