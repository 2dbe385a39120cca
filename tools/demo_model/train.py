"""Trains the embedded model: `python -m tools.demo_model.train --out DIR`."""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch.nn import functional
from transformers import LlamaForCausalLM

from tools.demo_model.batches import batches
from tools.demo_model.corpus import documents
from tools.demo_model.export import export
from tools.demo_model.network import build_config, build_model
from tools.demo_model.tokenizer import VOCAB_SIZE, train_tokenizer


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
