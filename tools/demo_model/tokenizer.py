"""Byte-level BPE tokenizer: every UTF-8 string encodes, and decodes to itself."""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tools.demo_model.chat import TEMPLATE_NAME, chat_template

VOCAB_SIZE = 2048
CONTEXT_LENGTH = 2048
END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
CONTROL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)
VISIBLE_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Single tokens that stay in the decoded text, where a tool parser looks for them."""

_SPLIT = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Learn the vocabulary from documents."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    added = len(CONTROL_TOKENS) + len(VISIBLE_TOKENS)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - added,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in CONTROL_TOKENS])
    tokenizer.add_tokens([AddedToken(token, special=False) for token in VISIBLE_TOKENS])
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise ValueError(f"the sample yields {tokenizer.get_vocab_size()} tokens, not {VOCAB_SIZE}")
    return tokenizer


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """Return the number of a token that must exist."""
    number = tokenizer.token_to_id(token)
    if number is None:
        raise KeyError(token)
    return int(number)


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the files that `AutoTokenizer` loads."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "add_bos_token": False,
        "add_eos_token": False,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT_LENGTH,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / TEMPLATE_NAME).write_text(chat_template(), encoding="utf-8")
