"""Trains the embedded model: `python -m tools.demo_model.train --out DIR`."""

import argparse
import math
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from tools.demo_model.corpus import documents
from tools.demo_model.tokenizer import (
    CONTEXT_LENGTH,
    END_OF_TEXT,
    TURN_END,
    VOCAB_SIZE,
    token_id,
    train_tokenizer,
    write_tokenizer,
)

_ENCODE_BLOCK = 512


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that decides the weights, besides the corpus itself."""

    seed: int = 20261121
    steps: int = 1600
    tokens_per_step: int = 4096
    long_share: float = 0.15
    short_length: int = 512
    long_length: int = 1024
    peak_rate: float = 2e-3
    final_rate: float = 1e-4
    warmup_steps: int = 60
    tokenizer_documents: int = 20000

    @property
    def short_steps(self) -> int:
        """Steps taken on short rows, before the rows get longer."""
        return self.steps - int(self.steps * self.long_share)

    def rate(self, step: int) -> float:
        """Return the learning rate of a step: linear warm-up, then a cosine."""
        if step < self.warmup_steps:
            return self.peak_rate * (step + 1) / self.warmup_steps
        progress = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        return self.final_rate + (self.peak_rate - self.final_rate) * (1 + math.cos(math.pi * progress)) / 2


class Progress:
    """Prints step, loss, speed and time left."""

    def __init__(self, plan: Plan, every: int) -> None:
        """Start the clock."""
        self._plan = plan
        self._every = every
        self._started = time.monotonic()
        self.loss = math.nan

    def report(self, step: int, loss: float) -> None:
        """Fold a step's loss into the running mean, and print it from time to time."""
        self.loss = loss if math.isnan(self.loss) else 0.98 * self.loss + 0.02 * loss
        done = step + 1
        if done % self._every and done != self._plan.steps:
            return
        elapsed = time.monotonic() - self._started
        speed = done * self._plan.tokens_per_step / elapsed
        left = (self._plan.steps - done) * elapsed / done
        print(
            f"step {done}/{self._plan.steps}  loss {self.loss:.4f}  {speed:,.0f} tokens/s  "
            f"elapsed {elapsed / 60:.1f} min  ETA {left / 60:.1f} min",
            flush=True,
        )


def train(plan: Plan, out: Path, *, threads: int = 2, report_every: int = 50, save_every: int = 400) -> float:
    """Train tokenizer and weights, write them to `out`, and return the final loss (running mean)."""
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    tokenizer = train_tokenizer(islice(documents(plan.seed), plan.tokenizer_documents))
    model = build_model(build_config(tokenizer), plan.seed)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    optimizer = _optimizer(model, plan)
    progress = Progress(plan, report_every)
    short = batches(documents(plan.seed + 1), tokenizer, plan.short_length, plan.tokens_per_step)
    long = batches(documents(plan.seed + 2), tokenizer, plan.long_length, plan.tokens_per_step)
    for step in range(plan.steps):
        batch = next(short if step < plan.short_steps else long)
        for group in optimizer.param_groups:
            group["lr"] = plan.rate(step)
        progress.report(step, _step(model, optimizer, batch))
        if (step + 1) % save_every == 0 or step + 1 == plan.steps:
            export(model, tokenizer, out)
    return progress.loss


def _optimizer(model: LlamaForCausalLM, plan: Plan) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    return torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=plan.peak_rate,
        betas=(0.9, 0.99),
    )


def _step(model: LlamaForCausalLM, optimizer: torch.optim.AdamW, batch: torch.Tensor) -> float:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(input_ids=batch, use_cache=False).logits
    loss = functional.cross_entropy(logits[:, :-1].float().reshape(-1, VOCAB_SIZE), batch[:, 1:].reshape(-1))
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.detach())


def rows(texts: Iterable[str], tokenizer: Tokenizer, length: int) -> Iterator[list[int]]:
    """Yield rows of `length` tokens; a row's last document is cut where the row is full."""
    end = token_id(tokenizer, END_OF_TEXT)
    stream = iter(texts)
    row: list[int] = []
    while block := list(islice(stream, _ENCODE_BLOCK)):
        for encoding in tokenizer.encode_batch_fast(block):
            row.extend(encoding.ids)
            row.append(end)
            if len(row) >= length:
                yield row[:length]
                row = []


def batches(
    texts: Iterable[str], tokenizer: Tokenizer, length: int, tokens_per_batch: int
) -> Iterator[torch.Tensor]:
    """Yield batches of shape (rows, length) that hold `tokens_per_batch` tokens each."""
    stream = rows(texts, tokenizer, length)
    while block := list(islice(stream, tokens_per_batch // length)):
        yield torch.tensor(block, dtype=torch.long)


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


def export(model: LlamaForCausalLM, tokenizer: Tokenizer, out: Path) -> None:
    """Write bfloat16 weights, configs and tokenizer into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".export-") as scratch:
        folder = Path(scratch)
        _write_weights(model, folder / "model.safetensors")
        config = model.config.to_dict() | {"dtype": "bfloat16"}
        type(model.config).from_dict(config).save_pretrained(folder)
        build_generation_config(model.config).save_pretrained(folder)
        write_tokenizer(tokenizer, folder)
        for file in sorted(folder.iterdir()):
            os.replace(file, out / file.name)


def _write_weights(model: LlamaForCausalLM, path: Path) -> None:
    tied = "lm_head.weight"
    tensors = {
        name: tensor.detach().to(torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != tied
    }
    save_file(tensors, str(path), metadata={"format": "pt"})
    path.chmod(0o644)


def main() -> None:
    """Parse the command line and train."""
    default = Plan()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder that receives the model")
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--steps", type=int, default=default.steps)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    started = time.monotonic()
    plan = Plan(seed=arguments.seed, steps=arguments.steps)
    loss = train(plan, arguments.out, threads=arguments.threads)
    print(f"done: loss {loss:.4f} after {(time.monotonic() - started) / 60:.1f} min, in {arguments.out}")


if __name__ == "__main__":
    main()
