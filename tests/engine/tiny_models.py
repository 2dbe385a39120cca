"""Tiny models with random weights and the tokenizer of the embedded model, made when a test asks for them."""

import json
import shutil
from pathlib import Path

import torch
from transformers import (
    AddedToken,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    Blip2Config,
    Blip2ForConditionalGeneration,
    Blip2Processor,
    Blip2QFormerConfig,
    Blip2VisionConfig,
    GenerationConfig,
    LlamaConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    WhisperTokenizer,
)
from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil
from vllm.model_executor.models.whisper import ISO639_1_SUPPORTED_LANGS

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


def speech_model(folder: Path) -> str:
    """Write a Whisper, which reads two seconds of speech at once and 64 tokens of text. 1.1 MB, 0.3 s."""
    torch.manual_seed(7)
    text = json.loads((embedded_model_path() / "tokenizer.json").read_text())["model"]
    tokenizer = WhisperTokenizer(text["vocab"], [tuple(pair) for pair in text["merges"]])
    # Ids of timestamps are above all others.
    tasks = ("translate", "transcribe", "prev", "notimestamps")
    names = ("startoftranscript", *ISO639_1_SUPPORTED_LANGS, *tasks)
    tokenizer.add_tokens([AddedToken(f"<|{name}|>", special=True) for name in names], special_tokens=True)
    tokenizer.add_tokens([f"<|{step / 50:.2f}|>" for step in range(101)])
    begin, end = tokenizer.convert_tokens_to_ids("<|startoftranscript|>"), tokenizer.eos_token_id
    ids = {"decoder_start_token_id": begin, "eos_token_id": end, "bos_token_id": end, "pad_token_id": end}
    model = WhisperForConditionalGeneration(
        WhisperConfig(
            **ids,
            vocab_size=len(tokenizer),
            d_model=64,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=1,
            decoder_attention_heads=1,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            max_source_positions=100,
            max_target_positions=64,
            init_std=0.5,
        )
    )
    model.generation_config = GenerationConfig(**ids)
    model.save_pretrained(folder)
    WhisperProcessor(WhisperFeatureExtractor(chunk_length=2), tokenizer).save_pretrained(folder)
    return str(folder)


def _written(model: torch.nn.Module, folder: Path) -> str:
    model.save_pretrained(folder)  # type: ignore[operator]
    for name in _TOKENIZER:
        (folder / name).write_bytes((embedded_model_path() / name).read_bytes())
    return str(folder)


def decoder(folder: Path, kind: str) -> None:
    """Write a model of the type `qwen3` or `gemma3_text` with random weights and the embedded tokenizer."""
    own = {"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"]}
    config = AutoConfig.for_model(
        kind, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, vocab_size=2048, max_position_embeddings=1024, dtype="bfloat16",
        **(own if kind == "gemma3_text" else {}),
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(embedded_model_path() / name, folder)
