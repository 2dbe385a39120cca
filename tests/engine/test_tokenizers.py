"""vLLM's front end with tokenizers of other models, around a stub of the engine core."""

import asyncio
import copy
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast, TokenizersBackend

from serve_app.api.engine_client import Operation
from serve_app.engine.local_client import LocalEngine
from tests.engine.calls import engine_call
from tests.engine.streams import said
from tests.engine.stub_engine_core import StubEngineCore, front_end

BYTE = 3
"""The id of the byte 0 in a byte-fallback vocabulary; the others follow."""


def byte_fallback(folder: Path) -> Path:
    """Save a tokenizer of the kind of Llama 2's: what no piece covers becomes tokens of single bytes."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁sea", "▁tide"]
    made = Tokenizer(
        models.BPE(
            vocab={piece: number for number, piece in enumerate(pieces)},
            merges=[],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _saved(made, folder)


def large(folder: Path, size: int = 2_000) -> Path:
    """Save a tokenizer with a vocabulary of `size` words."""
    words = ["<unk>", "<s>", "</s>", *(f"word{number}" for number in range(size - 3))]
    vocab = {word: number for number, word in enumerate(words)}
    made = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _saved(made, folder)


def _saved(made: Tokenizer, folder: Path) -> Path:
    made.add_special_tokens([AddedToken(token, special=True) for token in ("<unk>", "<s>", "</s>")])
    whole = PreTrainedTokenizerFast(
        tokenizer_object=made,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        chat_template="{% for message in messages %}{{ message['content'] }} {% endfor %}",
    )
    whole.save_pretrained(folder)
    # Without a configuration vLLM waits 2 s for one.
    (folder / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    return folder


SEA, TIDE = 260, 261
NO_TEXT = [*(BYTE + byte for byte in "海".encode()), BYTE + 0xFF]
"""A character, and a byte that no text has: decoded together, neither is one."""


async def answer(client: LocalEngine, operation: Operation, **body: Any) -> Any:
    """The document of a whole answer, or what a stream says."""
    asked = engine_call(operation, json.dumps(body).encode(), "r-1")
    async with client.call(asked) as reply:
        if reply.stream is None:
            return json.loads(reply.body)
        return said([chunk async for chunk in reply.stream])


@pytest.mark.parametrize(
    "ids",
    [[SEA, *NO_TEXT, SEA, TIDE], NO_TEXT * 3, [*NO_TEXT, *NO_TEXT[:3], TIDE], [BYTE + 0xE6, SEA, *NO_TEXT]],
    ids=["in a text", "again and again", "then a character", "half a character"],
)
async def test_bytes_that_are_no_text_end_no_generation(ids: list[int], tmp_path: Path) -> None:
    core = StubEngineCore()
    core.answer = ids
    async with front_end(core, tokenizer=str(byte_fallback(tmp_path))) as (_, client):
        asked = {"prompt": "sea", "max_tokens": len(ids), "temperature": 0}
        completion = await answer(client, "completions", **asked)
        whole = await answer(client, "generate", **asked)
        streamed = await answer(client, "generate", **asked, stream=True)

    assert whole["token_ids"] == ids
    assert whole["text"] == streamed["text"] == completion["choices"][0]["text"]


LONG = "word1 " * 1500
MESSAGES = [{"role": "user", "content": LONG}]
OPERATIONS: dict[Operation, dict[str, Any]] = {
    "generate": {"prompt": LONG, "max_tokens": 1},
    "completions": {"prompt": LONG, "max_tokens": 1, "bad_words": ["word7"]},
    "chat_completions": {"messages": MESSAGES, "max_tokens": 1},
    "tokenize": {"messages": MESSAGES, "return_token_strs": True},
    "detokenize": {"tokens": [7] * 1500},
}


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Notes each copy of a tokenizer that is made."""
    made: list[object] = []
    deepcopy = copy.deepcopy

    def noting(value: Any, memo: Any = None) -> Any:
        if isinstance(value, TokenizersBackend):
            made.append(value)
        return deepcopy(value, memo)

    monkeypatch.setattr(copy, "deepcopy", noting)
    return made


async def copies_made(client: LocalEngine, copies: list[object], **bodies: dict[str, Any]) -> int:
    """Copies of the tokenizer that 32 requests of each kind make together."""
    at_start = len(copies)
    assert at_start > 0  # vLLM's own, in advance
    calls = [answer(client, name, **body) for name, body in bodies.items() for _ in range(32)]  # type: ignore[arg-type]
    await asyncio.gather(*calls)
    return len(copies) - at_start


@pytest.mark.parametrize(
    ("task", "bodies"),
    [("generate", OPERATIONS), ("embed", {"embeddings": {"input": [LONG] * 4}})],
    ids=["generate", "embed"],
)
async def test_no_number_of_requests_at_once_copies_the_tokenizer(
    tmp_path: Path, copies: list[object], task: str, bodies: dict[str, Any]
) -> None:
    model = {"tokenizer": str(large(tmp_path)), "max_model_len": 2048, "task": task}
    async with front_end(StubEngineCore((task,)), **model) as (_, client):
        assert await copies_made(client, copies, **bodies) == 0
