"""Tiny models with random weights and the tokenizer of the embedded model, made when a test asks for them."""

from pathlib import Path

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

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


def vision_model(folder: Path) -> str:
    """Write a LLaVA that sees an image as four tokens, with the chat format of the embedded model. 2 MB."""
    torch.manual_seed(7)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(embedded_model_path())
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    image = tokenizer.convert_tokens_to_ids("<image>")
    vision = CLIPVisionConfig(
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=28,
        patch_size=14,
    )
    text = LlamaConfig(
        vocab_size=2176,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=512,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_index=image, image_seq_length=4)
    size = {"height": 28, "width": 28}
    processor = LlavaProcessor(
        CLIPImageProcessor(size={"shortest_edge": 28}, crop_size=size),
        tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )
    LlavaForConditionalGeneration(config).save_pretrained(folder)
    processor.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(_SEE)
    return str(folder)


_SEE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% for part in message.content %}{{ '<image>' if part.type == 'image' else part.text }}{% endfor %}"
    "<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
