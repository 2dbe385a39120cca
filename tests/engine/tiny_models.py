"""Tiny models with random weights and the tokenizer of the embedded model, made when a test asks for them."""

from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification

from serve_app.weights import embedded_model_path

_TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


def cross_encoder(folder: Path, labels: int = 1) -> str:
    """Write a BERT that classifies text into `labels` classes; with one, a cross-encoder. 0.8 MB, 0.2 s."""
    torch.manual_seed(7)
    config = BertConfig(
        vocab_size=2048,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=512,
        num_labels=labels,
        initializer_range=0.5,  # with the usual 0.02, all texts have nearly the same score
    )
    return _written(BertForSequenceClassification(config), folder)


def _written(model: torch.nn.Module, folder: Path) -> str:
    model.save_pretrained(folder)  # type: ignore[operator]
    for name in _TOKENIZER:
        (folder / name).write_bytes((embedded_model_path() / name).read_bytes())
    return str(folder)
