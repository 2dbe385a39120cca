"""Hash the beginnings of a prompt, to find prompts that share a prefix.

A client serialises a conversation the same way each time. So the bytes of each turn begin with the bytes of
the turn before, up to its last message. Hashing takes 0.4 us per kilobyte, and needs no tokenizer.
"""

from __future__ import annotations

from operator import attrgetter

import msgspec
from xxhash import xxh3_64_intdigest

from serve_app.api.errors import NOT_JSON

BLOCK_BYTES = 512
"""A prefix counts in whole blocks, each about 128 tokens of English. With blocks of 256 bytes hashing takes
twice as long, and finds some 32 tokens more per prompt on average."""
MOST_BLOCKS = 256
"""128 KiB, or 32,768 tokens: the bound on an estimated prompt (`ingress.admission`)."""
_MOST_BACK = 4
"""The turn before may have ended so many messages before the prompt's end: an answer, a user's message, and
the results of two tool calls."""

_LIST = ord("[")
_UNSET = (b"", b"null")
_NONE = msgspec.Raw(b"")
_messages = msgspec.json.Decoder(list[msgspec.Raw])
_CACHE_MARK = b',"cache_control":{'
_BILLING = b'{"type":"text","text":"x-anthropic-billing-header'


class PromptFields(msgspec.Struct):
    """The fields of a body that decide the first tokens of its prompt, as the client wrote them."""

    messages: msgspec.Raw = _NONE
    prompt: msgspec.Raw = _NONE
    input: msgspec.Raw = _NONE
    """Of Responses: the conversation, or its only message."""
    prompt_logprobs: msgspec.Raw = _NONE
    """With prompt logprobs vLLM does not use its prefix cache."""
    cache_salt: msgspec.Raw = _NONE
    tools: msgspec.Raw = _NONE
    system: msgspec.Raw = _NONE
    documents: msgspec.Raw = _NONE
    chat_template: msgspec.Raw = _NONE
    chat_template_kwargs: msgspec.Raw = _NONE
    reasoning_effort: msgspec.Raw = _NONE
    instructions: msgspec.Raw = _NONE
    previous_input_messages: msgspec.Raw = _NONE
    reasoning: msgspec.Raw = _NONE
    add_special_tokens: msgspec.Raw = _NONE
    truncate_prompt_tokens: msgspec.Raw = _NONE


_FIRST = PromptFields.__struct_fields__[PromptFields.__struct_fields__.index("cache_salt") :]
_before = attrgetter(*_FIRST)
_NOTHING_BEFORE = (_NONE,) * len(_FIRST)


class PromptPrefix(msgspec.Struct, frozen=True):
    """Hashes of the beginnings of a prompt. Two prompts with the same hash share all bytes up to its end."""

    size: int
    """Bytes of the prompt as JSON, with the tools and other fields that come first."""
    blocks: tuple[int, ...]
    """The hash of all bytes up to the end of each whole block; at most `MOST_BLOCKS`."""
    end: int
    """The hash of the whole prompt; 0 if the prompt is longer than `MOST_BLOCKS` blocks."""
    turns: tuple[tuple[int, int], ...] = ()
    """Possible ends of earlier turns' prompts, latest first: the hash at that end, and the bytes up to the
    end of the next message. That message is the answer, which the engine has cached too."""


def prompt_prefix(fields: PromptFields, cache_salt: str = "") -> PromptPrefix | None:
    """Return the hashes of a prompt; None for a batch of prompts, or without a valid prompt.

    Another salt or other tools give other hashes, which never match. `cache_salt` is the salt of the client's
    API key. The body may have its own salt too.
    """
    given = (fields.messages, fields.prompt, fields.input)
    written = next((each for each in given if len(each)), _NONE)
    is_prompt = written is fields.prompt
    text = shown = bytes(written) if is_prompt else _shown(bytes(written))
    # Leave out the closing quote or bracket: the next turn continues before it.
    size = len(shown) - 1
    if size <= 0 or bytes(fields.prompt_logprobs) not in _UNSET:
        return None
    if is_prompt and holds_prompts(text):
        return None
    has_messages = not is_prompt and (text[0] == _LIST or written is fields.messages)
    salted = xxh3_64_intdigest(cache_salt.encode()) if cache_salt else 0
    if (before := _before(fields)) != _NOTHING_BEFORE:
        first = _shown(b"\0".join(before)) + b"\0"
        text, size = first + text, size + len(first)
    blocks: list[int] = []
    hashed = salted
    for start in range(0, min(size // BLOCK_BYTES, MOST_BLOCKS) * BLOCK_BYTES, BLOCK_BYTES):
        hashed = xxh3_64_intdigest(text[start : start + BLOCK_BYTES], hashed)
        blocks.append(hashed)
    if size >= (MOST_BLOCKS + 1) * BLOCK_BYTES:
        return PromptPrefix(size, tuple(blocks), 0)
    if not has_messages:
        return PromptPrefix(size, tuple(blocks), _hash_to(size, text, blocks, salted))
    try:
        ends = _last_ends(text, _messages.decode(shown))
    except NOT_JSON:
        return None
    if not ends:
        return None
    end, *earlier = [_hash_to(end, text, blocks, salted) for end in ends]
    return PromptPrefix(size, tuple(blocks), end, tuple(zip(earlier, ends, strict=False)))


def holds_prompts(prompt: bytes) -> bool:
    """Return whether the value of `prompt` is a list of prompts, and not one prompt of token ids."""
    return prompt[:1] == b"[" and not prompt[1:32].lstrip()[:1].isdigit()


def _shown(body: bytes) -> bytes:
    """Return a part of a body without what agents change in each turn and no model sees.

    These are the marks of Anthropic's prompt cache, and the first block of Claude Code's `system`, which has
    a hash of the request and which vLLM drops. In a text their quotes would be escaped.
    """
    first, *rest = body.split(_CACHE_MARK)
    shown = first + b"".join(each.partition(b"}")[2] for each in rest)
    before, _, after = shown.partition(_BILLING)
    return before + after.partition(b'"},')[2] if after else shown


def _hash_to(end: int, text: bytes, blocks: list[int], salted: int) -> int:
    whole = end // BLOCK_BYTES
    return xxh3_64_intdigest(text[whole * BLOCK_BYTES : end], blocks[whole - 1] if whole else salted)


def _last_ends(text: bytes, messages: list[msgspec.Raw]) -> list[int]:
    """Return where the last messages (JSON objects) end in `text`, the last message first."""
    ends, before = [], len(text)
    for message in reversed(messages[-_MOST_BACK - 1 :]):
        end = text.rfind(b"}", 0, before) + 1
        ends.append(end)
        before = max(end - len(message), 0)
    return ends
