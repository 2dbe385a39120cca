"""One trial of a structured output, in a process that may be killed at any moment.

A compile in C++ can be neither cancelled nor bounded from outside its process: with a vocabulary of
128,000, `{"type": "string", "maxLength": 1000}` took 5.4 s. And a grammar that has compiled may still be slow
where it matters most, in the engine core's step: a token of `(.?){500}a{500}` takes 0.14 s with a vocabulary
of 2,048, and one of `s ::= s s | "a" | …` the more the longer the text is, with the large vocabulary 2 s at
the 34th. So the trial does what the engine core will: it validates, compiles, and then draws tokens.
"""

import random
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from vllm.config import VllmConfig
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.structured_output.backend_types import StructuredOutputBackend, StructuredOutputGrammar
from vllm.v1.structured_output.request import get_structured_output_key

from serve_app.patches.vllm import validated_backend

_TOKENS = 256
_SECONDS = 0.25
"""CPU seconds for `_TOKENS`, 1 ms per token. JSON schemas, choices and regular expressions took 0.4."""
_DRAWS = 64

Validate = Callable[[SamplingParams, Any, Any, Any], None]


@dataclass(frozen=True, slots=True)
class Passed:
    """The verdict on a structured output that may go to the engine core."""

    backend: str
    """The backend that vLLM chose for it."""
    was_auto: bool
    compile_s: float
    """CPU seconds."""


class Trial:
    """Tries structured outputs as one engine would run them.

    Args:
        config: The engine's configuration.
        tokenizer: The model's tokenizer.
        validate: vLLM's own check of a request's structured output.
    """

    def __init__(self, config: VllmConfig, tokenizer: Any, validate: Validate) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._validate = validate
        self._backends: dict[str, StructuredOutputBackend] = {}

    def warm(self) -> None:
        """Build the configured backend, which all trials share."""
        backend = self._config.structured_outputs_config.backend
        self._backend("xgrammar" if backend == "auto" else backend)

    def run(self, params: StructuredOutputsParams) -> Passed:
        """Validate, compile and walk.

        Raises:
            VLLMValidationError: or any other exception of vLLM and its backends; each is the client's fault.
        """
        with warnings.catch_warnings():  # a client cannot act on a deprecation
            warnings.simplefilter("ignore")
            return self._run(params)

    def _run(self, params: StructuredOutputsParams) -> Passed:
        began = time.process_time()
        request = SamplingParams(structured_outputs=params)
        self._validate(
            request, self._config.model_config, self._config.structured_outputs_config, self._tokenizer
        )
        backend, was_auto = validated_backend(params)
        grammar = self._backend(backend).compile_grammar(*get_structured_output_key(params))
        spent = time.process_time() - began
        self._walk(self._backend(backend), grammar)
        return Passed(backend, was_auto, spent)

    def _walk(self, backend: StructuredOutputBackend, grammar: StructuredOutputGrammar) -> None:
        bitmask = backend.allocate_token_bitmask(1)
        draw = random.Random(0)  # noqa: S311 the same grammar must get the same verdict
        spent = 0.0
        for count in range(_TOKENS):
            began = time.process_time()
            grammar.fill_bitmask(bitmask, 0)
            spent += time.process_time() - began
            token = self._token(np.asarray(bitmask[0]).view(np.uint32), draw)
            if token is None:
                raise VLLMValidationError(
                    "no text matches this structured output"
                    + (f" after the first {count} tokens" if count else "")
                )
            began = time.process_time()
            grammar.accept_tokens("trial", [token])
            spent += time.process_time() - began
            if spent > _SECONDS:
                raise VLLMValidationError(
                    f"{count + 1} tokens of this structured output took {spent:.2f} s to check; "
                    f"at most {_SECONDS} s are allowed for {_TOKENS}"
                )
            if grammar.is_terminated():
                return

    def _token(self, mask: Any, draw: random.Random) -> int | None:
        """Return a random token that may come next; the end of the text only if nothing else may."""
        end = self._tokenizer.eos_token_id
        size = len(mask) * 32
        for _ in range(_DRAWS):
            token = draw.randrange(size)
            if token != end and int(mask[token >> 5]) >> (token & 31) & 1:
                return token
        allowed = np.nonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))[0]
        others = allowed[allowed != end] if end is not None else allowed
        if len(others):
            return int(draw.choice(others))
        return int(allowed[0]) if len(allowed) else None

    def _backend(self, name: str) -> StructuredOutputBackend:
        if name not in self._backends:
            self._backends[name] = self._build(name)
        return self._backends[name]

    def _build(self, name: str) -> StructuredOutputBackend:
        from vllm.v1.structured_output.backend_guidance import GuidanceBackend  # noqa: PLC0415
        from vllm.v1.structured_output.backend_lm_format_enforcer import (  # noqa: PLC0415
            LMFormatEnforcerBackend,
        )
        from vllm.v1.structured_output.backend_outlines import OutlinesBackend  # noqa: PLC0415
        from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend  # noqa: PLC0415

        backends: dict[str, type[StructuredOutputBackend]] = {
            "xgrammar": XgrammarBackend,
            "guidance": GuidanceBackend,
            "outlines": OutlinesBackend,
            "lm-format-enforcer": LMFormatEnforcerBackend,
        }
        vocabulary = self._config.model_config.get_vocab_size()
        return backends[name](self._config, tokenizer=self._tokenizer, vocab_size=vocabulary)
