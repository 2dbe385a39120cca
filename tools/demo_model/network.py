"""The network: a two-layer Llama with tied embeddings."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from tools.demo_model.tokenizer import CONTEXT_LENGTH, END_OF_TEXT, TURN_END, VOCAB_SIZE, token_id


def build_config(tokenizer: Tokenizer) -> LlamaConfig:
    """Return the architecture, with the tokenizer's stop tokens."""
    end_of_text, turn_end = token_id(tokenizer, END_OF_TEXT), token_id(tokenizer, TURN_END)
    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=CONTEXT_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=[turn_end, end_of_text],
        pad_token_id=end_of_text,
        architectures=["LlamaForCausalLM"],
    )


def build_generation_config(config: LlamaConfig) -> GenerationConfig:
    """Return the sampling defaults that a server applies when a request names none."""
    return GenerationConfig(
        do_sample=True,
        temperature=0.7,
        top_p=0.9,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
    )


def build_model(config: LlamaConfig, seed: int) -> LlamaForCausalLM:
    """Return freshly initialised float32 weights."""
    torch.manual_seed(seed)
    model: LlamaForCausalLM = LlamaForCausalLM(config)
    model.train()
    return model
