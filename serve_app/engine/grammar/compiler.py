"""A compile job: validate a structured output, compile it, and draw tokens from it.

A process cannot cancel or bound its own compile in C++. With a vocabulary of 128,000,
`{"type": "string", "maxLength": 1000}` takes 5.4 s. A compiled grammar may still be slow in the engine core's
step: a token of `(.?){500}a{500}` takes 0.14 s with a vocabulary of 2,048. The 34th token of
`s ::= s s | "a" | …` takes 2 s with a vocabulary of 128,000. So a job does all that the engine core will do.
"""

import random
import re
import time
import warnings
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from vllm.config import VllmConfig
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.structured_output.backend_types import StructuredOutputBackend, StructuredOutputGrammar
from vllm.v1.structured_output.request import get_structured_output_key

from serve_app.patches.vllm import validate_structured_outputs, validated_backend

_TOKENS = 256
_SECONDS = 0.25
"""CPU seconds for `_TOKENS`, 1 ms per token. JSON schemas, choices and regular expressions take 0.4 ms."""
_DRAWS = 64
_WHERE = re.compile(r"\[\d\d:\d\d:\d\d\] \S+:\d+: | \(parameter=\w+\)")
"""xgrammar's source location, and vLLM's suffix of messages."""
_UNSUPPORTED = "features not supported by"


class Passed(msgspec.Struct, tag=True):
    """The verdict on an accepted structured output."""

    backend: str
    """The backend that vLLM chose for it."""
    was_auto: bool
    compile_s: float
    """CPU seconds."""


class Refused(msgspec.Struct, tag=True):
    """The verdict on a refused structured output, and the reason."""

    message: str


Verdict = Passed | Refused


@dataclass(slots=True, eq=False)
class GrammarCompiler:
    """Compiles structured outputs as one engine would."""

    config: VllmConfig
    tokenizer: Any
    _backends: dict[str, StructuredOutputBackend] = field(default_factory=dict, init=False)

    def warm(self) -> None:
        """Build the configured backend, which all jobs share."""
        backend = self.config.structured_outputs_config.backend
        self._backend("xgrammar" if backend == "auto" else backend)

    def run(self, payload: bytes) -> bytes:
        """Run one job. The payload has the fields of `StructuredOutputsParams`, the result is a `Verdict`.

        Both are MessagePack.
        """
        verdict: Verdict
        try:
            with warnings.catch_warnings():  # a client cannot act on a deprecation
                warnings.simplefilter("ignore")
                verdict = self.compile(StructuredOutputsParams(**msgspec.msgpack.decode(payload)))
        except MemoryError:
            raise
        except Exception as error:  # whatever a backend raises, the client's grammar caused it
            message = _WHERE.sub("", str(error)).strip() or type(error).__name__
            if _UNSUPPORTED in message:
                message += " Another backend may support them (structured_output.backend)."
            verdict = Refused(message[:1000])
        return msgspec.msgpack.encode(verdict)

    def compile(self, params: StructuredOutputsParams) -> Passed:
        """Validate, compile and draw tokens.

        Raises:
            VLLMValidationError: or any other exception of vLLM and its backends. The client caused each.
        """
        began = time.process_time()
        validate_structured_outputs(
            SamplingParams(structured_outputs=params),
            self.config.model_config,
            self.config.structured_outputs_config,
            self.tokenizer,
        )
        name, was_auto = validated_backend(params)
        backend = self._backend(name)
        grammar = backend.compile_grammar(*get_structured_output_key(params))
        spent = time.process_time() - began
        self._draw_tokens(backend, grammar)
        return Passed(name, was_auto, spent)

    def _draw_tokens(self, backend: StructuredOutputBackend, grammar: StructuredOutputGrammar) -> None:
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
            grammar.accept_tokens("compile-job", [token])
            spent += time.process_time() - began
            if spent > _SECONDS:
                raise VLLMValidationError(
                    f"{count + 1} tokens of this structured output took {spent:.2f} s to check; "
                    f"at most {_SECONDS} s are allowed for {_TOKENS}"
                )
            if grammar.is_terminated():
                return

    def _token(self, mask: Any, draw: random.Random) -> int | None:
        """Return a random allowed token; the end of the text only if no other token is allowed."""
        end = self.tokenizer.eos_token_id
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
            vocabulary = self.config.model_config.get_vocab_size()
            self._backends[name] = _backend_class(name)(
                self.config, tokenizer=self.tokenizer, vocab_size=vocabulary
            )
        return self._backends[name]


def _backend_class(name: str) -> type[StructuredOutputBackend]:
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
    return backends[name]
