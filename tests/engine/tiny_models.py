"""Tiny models with random weights and the tokenizer of the embedded model, made when a test asks for them."""

from pathlib import Path

import torch
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

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
    """Write a LLaVA whose image of 28 by 28 pixels is four tokens. 0.9 MB.

    Its image processor needs Pillow only. Those of most other models need torchvision.
    """
    torch.manual_seed(7)
    tokenizer = AutoTokenizer.from_pretrained(embedded_model_path())
    tokenizer.add_tokens(["<image>"], special_tokens=True)
    image_token = tokenizer.convert_tokens_to_ids("<image>")
    tower = CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=1,
        image_size=28,
        patch_size=14,
        initializer_factor=20.0,  # with the usual 1, all images look nearly the same
    )
    text = LlamaConfig(
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
    )
    config = LlavaConfig(
        vision_config=tower, text_config=text, image_token_index=image_token, image_seq_length=4
    )
    LlavaForConditionalGeneration(config).save_pretrained(folder)
    LlavaProcessor(
        CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}),
        tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        image_token="<image>",
        chat_template=(embedded_model_path() / "chat_template.jinja").read_text(),
    ).save_pretrained(folder)
    return str(folder)


def _written(model: torch.nn.Module, folder: Path) -> str:
    model.save_pretrained(folder)  # type: ignore[operator]
    for name in _TOKENIZER:
        (folder / name).write_bytes((embedded_model_path() / name).read_bytes())
    return str(folder)
