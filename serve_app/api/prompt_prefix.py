"""Hashes of the beginnings of a prompt, by which prompts that share a prefix are found.

A client serialises a conversation alike each time, so the bytes of its next turn begin with those of the one
before, up to the last message. Hashing them takes no tokenizer, and 0.4 us a kilobyte.
"""

from __future__ import annotations

from operator import attrgetter

import msgspec
from xxhash import xxh3_64_intdigest

BLOCK_BYTES = 512
"""128 tokens of English: a prefix counts in whole blocks. With 256 bytes hashing takes twice as long, to find
some 32 tokens more of a prompt on average."""
MOST_BLOCKS = 256
"""128 KiB, the 32,768 tokens that a prompt is counted as at most (`ingress.admission`)."""
_MOST_BACK = 4
"""How many messages back from its end a prompt may have ended at the turn before: the answer, a user's
message, and the results of two tool calls more."""

_LIST = ord("[")
_UNSET = (b"", b"null")
_NONE = msgspec.Raw(b"")
_messages = msgspec.json.Decoder(list[msgspec.Raw])


class PromptFields(msgspec.Struct):
    """The fields of a body that decide with which tokens its prompt begins, each as the client wrote it."""

    messages: msgspec.Raw = _NONE
    prompt: msgspec.Raw = _NONE
    prompt_logprobs: msgspec.Raw = _NONE
    """With them vLLM leaves its cache aside."""
    cache_salt: msgspec.Raw = _NONE
    tools: msgspec.Raw = _NONE
    documents: msgspec.Raw = _NONE
    chat_template: msgspec.Raw = _NONE
    chat_template_kwargs: msgspec.Raw = _NONE
    reasoning_effort: msgspec.Raw = _NONE
    add_special_tokens: msgspec.Raw = _NONE
    truncate_prompt_tokens: msgspec.Raw = _NONE


_FIRST = PromptFields.__struct_fields__[PromptFields.__struct_fields__.index("cache_salt") :]
_before = attrgetter(*_FIRST)
_NOTHING_BEFORE = (_NONE,) * len(_FIRST)


class PromptPrefix(msgspec.Struct, frozen=True):
    """Hashes of what a prompt begins with. Two prompts that share one share all bytes before it."""

    size: int
    """Bytes of the prompt as JSON, with its tools and whatever else comes first."""
    blocks: tuple[int, ...]
    """One for each whole block, of all bytes up to its end; at most `MOST_BLOCKS`."""
    end: int
    """The hash of the whole prompt; 0 where it is longer than the blocks reach."""
    turns: tuple[tuple[int, int], ...] = ()
    """(hash, bytes): where the prompt of an earlier turn may have ended, latest first, and the bytes up to
    the end of the message behind it, its answer, which the engine has cached, too."""


def prompt_prefix(fields: PromptFields, cache_salt: str = "") -> PromptPrefix | None:
    """Return what a prompt may share with others; None for a batch of prompts, and for what is no prompt.

    A prefix under another salt or behind other tools has other hashes, and so never matches. `cache_salt` is
    that of the client's API key, beside which the body may have one.
    """
    written = fields.messages if len(fields.messages) else fields.prompt
    # What closes the text or the list is left out; the next turn goes on before it.
    size = len(written) - 1
    if size <= 0 or bytes(fields.prompt_logprobs) not in _UNSET:
        return None
    text = bytes(written)
    if not len(fields.messages) and text[0] == _LIST and not text[1:32].lstrip()[:1].isdigit():
        return None
    salted = xxh3_64_intdigest(cache_salt.encode()) if cache_salt else 0
    if (before := _before(fields)) != _NOTHING_BEFORE:
        first = b"\0".join(map(bytes, before)) + b"\0"
        text, size = first + text, size + len(first)
    blocks: list[int] = []
    hashed = salted
    for start in range(0, min(size // BLOCK_BYTES, MOST_BLOCKS) * BLOCK_BYTES, BLOCK_BYTES):
        hashed = xxh3_64_intdigest(text[start : start + BLOCK_BYTES], hashed)
        blocks.append(hashed)
    if size >= (MOST_BLOCKS + 1) * BLOCK_BYTES:
        return PromptPrefix(size, tuple(blocks), 0)
    if not len(fields.messages):
        return PromptPrefix(size, tuple(blocks), _hash_to(size, text, blocks, salted))
    try:
        ends = _last_ends(text, _messages.decode(written))
    except (msgspec.DecodeError, RecursionError):
        return None
    if not ends:
        return None
    end, *earlier = [_hash_to(end, text, blocks, salted) for end in ends]
    return PromptPrefix(size, tuple(blocks), end, tuple(zip(earlier, ends, strict=False)))


def _hash_to(end: int, text: bytes, blocks: list[int], salted: int) -> int:
    whole = end // BLOCK_BYTES
    return xxh3_64_intdigest(text[whole * BLOCK_BYTES : end], blocks[whole - 1] if whole else salted)


def _last_ends(text: bytes, messages: list[msgspec.Raw]) -> list[int]:
    """Where the last messages, which are objects, end in `text`, the last one first."""
    ends, before = [], len(text)
    for message in reversed(messages[-_MOST_BACK - 1 :]):
        end = text.rfind(b"}", 0, before) + 1
        ends.append(end)
        before = max(end - len(message), 0)
    return ends
