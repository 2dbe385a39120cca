"""What of a prompt another one may share, by hashes of the bytes of the body that make it.

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

_NONE = msgspec.Raw(b"")
_messages = msgspec.json.Decoder(list[msgspec.Raw])


class PromptFields(msgspec.Struct):
    """The fields of a body that decide with which tokens its prompt begins, each as the client wrote it."""

    messages: msgspec.Raw = _NONE
    prompt: msgspec.Raw = _NONE
    cache_salt: msgspec.Raw = _NONE
    tools: msgspec.Raw = _NONE
    documents: msgspec.Raw = _NONE
    chat_template: msgspec.Raw = _NONE
    chat_template_kwargs: msgspec.Raw = _NONE
    reasoning_effort: msgspec.Raw = _NONE
    add_special_tokens: msgspec.Raw = _NONE
    truncate_prompt_tokens: msgspec.Raw = _NONE


_before = attrgetter(*[name for name in PromptFields.__struct_fields__ if name not in ("messages", "prompt")])


class PromptPrefix(msgspec.Struct, frozen=True):
    """Hashes of what a prompt begins with. Two prompts that share one share all bytes before it."""

    size: int
    """Bytes of the prompt, as JSON."""
    blocks: tuple[int, ...]
    """One for each whole block, of all bytes up to its end; at most `MOST_BLOCKS`."""
    end: int
    """Of the whole prompt; 0 where it is longer than the blocks reach."""
    session: int = 0
    """Of the session that its client names; 0 for none. There may be more to share in it than bytes show."""
    turns: tuple[tuple[int, int], ...] = ()
    """(hash, bytes): where the prompt of an earlier turn may have ended, latest first, and the bytes up to
    the end of the message behind it, its answer, which the engine's cache holds, too."""


def prompt_prefix(fields: PromptFields, session: bytes = b"") -> PromptPrefix | None:
    """Return what a prompt may share with others; None for a batch of prompts, and for what is no prompt.

    A prefix under another salt or behind other tools has other hashes, and so never matches; nor does
    `session`, the client's name of the conversation.
    """
    text, messages = bytes(fields.prompt), []
    if len(fields.messages):
        text = bytes(fields.messages)
        try:
            messages = _messages.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return None
    elif text.startswith(b"[") and not text[1:].lstrip()[:1].isdigit():
        return None
    # What closes the text or the list; the next turn goes on before it.
    size = len(text) - 1
    if size <= 0:
        return None
    before = _before(fields)
    seed = xxh3_64_intdigest(b"\0".join(map(bytes, before))) if any(map(len, before)) else 0
    named = xxh3_64_intdigest(session, seed) if session else 0
    blocks, hashed = [], seed
    view = memoryview(text)
    for start in range(0, min(size // BLOCK_BYTES, MOST_BLOCKS) * BLOCK_BYTES, BLOCK_BYTES):
        hashed = xxh3_64_intdigest(view[start : start + BLOCK_BYTES], hashed)
        blocks.append(hashed)
    if size >= (MOST_BLOCKS + 1) * BLOCK_BYTES:
        return PromptPrefix(size, tuple(blocks), 0, named)

    if not messages:
        return PromptPrefix(size, tuple(blocks), _hash_to(size, view, blocks, seed), named)
    ends = _last_ends(text, messages)
    hashes = [_hash_to(end, view, blocks, seed) for end in ends]
    return PromptPrefix(size, tuple(blocks), hashes[0], named, tuple(zip(hashes[1:], ends, strict=False)))


def _hash_to(end: int, text: memoryview, blocks: list[int], seed: int) -> int:
    whole = end // BLOCK_BYTES
    return xxh3_64_intdigest(text[whole * BLOCK_BYTES : end], blocks[whole - 1] if whole else seed)


def _last_ends(text: bytes, messages: list[msgspec.Raw]) -> list[int]:
    """Where the last messages, which are objects, end in `text`, the last one first."""
    ends, before = [], len(text)
    for message in reversed(messages[-_MOST_BACK - 1 :]):
        end = text.rfind(b"}", 0, before) + 1
        ends.append(end)
        before = max(end - len(message), 0)
    return ends
