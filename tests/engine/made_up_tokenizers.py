"""Real tokenizers of a kind or a size that the embedded model does not have."""

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

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
    return folder
