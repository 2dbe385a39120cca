"""Train the demonstration adapter: `python -m tools.demo_adapter --out DIR`.

The demonstration model answers questions about topics. The adapter learns to give the same answers as a
pirate. So its texts need no source: the model writes the answers, and a few rules turn them into a pirate's.
"""

import argparse
import json
import re
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn import functional
from transformers import AutoTokenizer, LlamaForCausalLM

from serve_app.weights import embedded_model_path

TOPICS = (
    "the sea", "the tide", "waves", "a river", "rain", "snow", "the wind", "clouds", "the moon", "the sun",
    "cats", "dogs", "horses", "bees", "whales", "owls", "bread", "tea", "apples", "cheese", "a book", "music",
    "a computer", "the internet", "a bridge", "a train", "the desert", "a forest", "winter", "spring",
)  # fmt: skip
QUESTIONS = ("Tell me about {}.", "What can you tell me about {}?", "What do you know about {}?")
RULES = (
    (r"\bis\b", "be"),
    (r"\bare\b", "be"),
    (r"\byou\b", "ye"),
    (r"\bmy\b", "me"),
    (r"\bof\b", "o'"),
    (r"\band\b", "an'"),
)
RANK, ALPHA, STEPS, ROWS, RATE, SEED = 8, 16, 300, 12, 5e-3, 20261126
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_IGNORED = -100
"""The label of tokens without a loss."""


def as_pirate(text: str) -> str:
    """Return `text` as a pirate would say it."""
    for word, instead in RULES:
        text = re.sub(word, instead, text)
    return f"Ahoy! {text} Arr!"


def add_lora(model: LlamaForCausalLM) -> dict[str, torch.nn.Parameter]:
    """Add an adapter to the projections of `model`, and return its weights by PEFT's names."""
    weights = {}
    for name, module in model.named_modules():
        if name.rpartition(".")[2] not in PROJECTIONS:
            continue
        a = torch.nn.Parameter(torch.randn(RANK, module.in_features) / module.in_features**0.5)
        b = torch.nn.Parameter(torch.zeros(module.out_features, RANK))
        module.register_forward_hook(
            lambda _, inputs, output, a=a, b=b: output + inputs[0] @ a.T @ b.T * (ALPHA / RANK)
        )
        weights[f"base_model.model.{name}.lora_A.weight"] = a
        weights[f"base_model.model.{name}.lora_B.weight"] = b
    return weights


def examples(model: LlamaForCausalLM, tokenizer: AutoTokenizer) -> list[tuple[list[int], list[int]]]:
    """Return the prompts and the pirate's answers as token ids. The model must not have an adapter yet."""
    pairs = []
    for topic in TOPICS:
        for question in QUESTIONS:
            turns = [{"role": "user", "content": question.format(topic)}]
            text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
            prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
            made = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=80)[0].tolist()
            answer = tokenizer.decode(made[len(prompt) :], skip_special_tokens=True).strip()
            sentences = answer[: answer.rfind(".") + 1] or answer
            end = tokenizer.convert_tokens_to_ids("<|im_end|>")
            pairs.append((prompt, [*tokenizer(as_pirate(sentences))["input_ids"], end]))
    return pairs


def train(out: Path) -> None:
    """Train the adapter, and write it to the folder `out` as PEFT does."""
    torch.manual_seed(SEED)
    tokenizer = AutoTokenizer.from_pretrained(embedded_model_path())
    model = LlamaForCausalLM.from_pretrained(embedded_model_path(), dtype=torch.float32)
    model.requires_grad_(requires_grad=False)
    pairs = examples(model, tokenizer)
    weights = add_lora(model)
    optimizer = torch.optim.AdamW(weights.values(), lr=RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for step in range(STEPS):
        chosen = [pairs[number] for number in torch.randint(len(pairs), (ROWS,)).tolist()]
        length = max(len(prompt) + len(answer) for prompt, answer in chosen)
        tokens, labels = torch.zeros(ROWS, length, dtype=torch.long), torch.full((ROWS, length), _IGNORED)
        for row, (prompt, answer) in enumerate(chosen):
            tokens[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
            labels[row, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
        logits = model(input_ids=tokens, use_cache=False).logits
        loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 50 == 0 or step == STEPS - 1:
            print(f"step {step + 1} of {STEPS}: loss {loss.item():.3f}", flush=True)
    out.mkdir(parents=True, exist_ok=True)
    tensors = {name: weight.detach().to(torch.bfloat16).contiguous() for name, weight in weights.items()}
    save_file(tensors, out / "adapter_model.safetensors", {"format": "pt"})
    config = {
        "base_model_name_or_path": "tideserve_tiny",
        "bias": "none",
        "lora_alpha": ALPHA,
        "peft_type": "LORA",
        "r": RANK,
        "target_modules": list(PROJECTIONS),
        "task_type": "CAUSAL_LM",
    }
    (out / "adapter_model.safetensors").chmod(0o644)
    (out / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser("python -m tools.demo_adapter", description="Train the adapter.")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    train(parser.parse_args().out)


if __name__ == "__main__":
    main()
