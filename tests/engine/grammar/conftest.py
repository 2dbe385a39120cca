"""A compiler of structured outputs for the embedded model, as its engine has it."""

from collections.abc import Callable

import pytest
from vllm.tokenizers import cached_tokenizer_from_config

from serve_app.engine.arguments import engine_config, vllm_namespace
from serve_app.engine.grammar.compiler import GrammarCompiler
from serve_app.settings.tree import ModelSettings

MODEL = {"name": "tiny", "device": "cpu", "enforce_eager": True, "max_model_len": 2048}


@pytest.fixture(scope="session")
def make_compiler() -> Callable[[], GrammarCompiler]:
    config = engine_config(vllm_namespace(ModelSettings.model_validate(MODEL)))
    tokenizer = cached_tokenizer_from_config(model_config=config.model_config)
    return lambda: GrammarCompiler(config, tokenizer)
