"""Tiny models with random weights and the tokenizer of the embedded model, made when a test asks for them."""

from pathlib import Path

import torch
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    Blip2Config,
    Blip2ForConditionalGeneration,
    Blip2Processor,
    Blip2QFormerConfig,
    Blip2VisionConfig,
    LlamaConfig,
)
from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil

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


def vision_language_model(folder: Path) -> str:
    """Write a BLIP-2 with a Llama, which reads an image as four tokens. 0.9 MB, 0.3 s.

    Its images need Pillow only. Most other models that see need torchvision, which the CPU build of vLLM does
    not bring.
    """
    torch.manual_seed(7)
    tokenizer = AutoTokenizer.from_pretrained(embedded_model_path())
    tokenizer.add_tokens(["<image>"], special_tokens=True)
    layers = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = Blip2Config(
        vision_config=Blip2VisionConfig(**layers, image_size=28, patch_size=14, initializer_range=1.0),
        qformer_config=Blip2QFormerConfig(
            **layers,
            vocab_size=16,
            encoder_hidden_size=32,
            cross_attention_frequency=1,
            initializer_range=1.0,
        ),
        text_config=LlamaConfig(
            vocab_size=2112,
            hidden_size=64,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=1,
            num_key_value_heads=1,
            head_dim=64,
            max_position_embeddings=512,
            tie_word_embeddings=True,
            initializer_range=0.5,
        ),
        num_query_tokens=4,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        initializer_range=1.0,
    )
    Blip2ForConditionalGeneration(config).save_pretrained(folder)
    images = BlipImageProcessorPil(size={"height": 28, "width": 28})
    Blip2Processor(images, tokenizer, num_query_tokens=4).save_pretrained(folder)
    template = "chat_template.jinja"
    (folder / template).write_bytes((embedded_model_path() / template).read_bytes())
    return str(folder)


def _written(model: torch.nn.Module, folder: Path) -> str:
    model.save_pretrained(folder)  # type: ignore[operator]
    for name in _TOKENIZER:
        (folder / name).write_bytes((embedded_model_path() / name).read_bytes())
    return str(folder)
