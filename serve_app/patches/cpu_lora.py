"""The computation of LoRA adapters on a CPU, one adapter after the other."""

from __future__ import annotations

from typing import Any

import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

Rows = list[tuple[int, torch.Tensor]]
"""The place of each adapter of a step among the stacked weights, and the rows of the step that use it."""


class PerAdapterWrapper(PunicaWrapperCPU):  # type: ignore[misc]  # vLLM has no types
    """Computes each adapter of a step for its own rows only.

    vLLM 0.32 looks up weights for each row, by the adapter's place. A row without an adapter has the place
    -1, which is the last one in torch. vLLM leaves the weights of a removed adapter in its place. So once the
    last place has been taken, requests for the model itself get the answers of that adapter. The look-up also
    copies the weights once for each row. vLLM imports this class by its path.
    """

    def update_metadata(self, *args: Any, **kwargs: Any) -> None:
        super().update_metadata(*args, **kwargs)
        self._rows = _rows(self.token_lora_indices)
        self._sampled_rows = _rows(self.sampler_indices)

    def _apply_shrink(self, y: torch.Tensor, x: torch.Tensor, weights: torch.Tensor, scale: float) -> None:
        _add(y.view(-1, y.shape[-1]), x, weights, self._rows, scale)

    def _apply_expand(
        self, y: torch.Tensor, x: torch.Tensor, weights: torch.Tensor, offset: int, size: int, **_: Any
    ) -> None:
        _add(y.narrow(1, offset, size), x, weights, self._rows)

    def add_lora_embedding(self, y: torch.Tensor, x: torch.Tensor, weights: torch.Tensor, **_: Any) -> None:
        _add(y, x, weights, self._rows)

    def add_lora_logits(
        self, y: torch.Tensor, x: torch.Tensor, down: torch.Tensor, up: torch.Tensor, scale: float, **_: Any
    ) -> None:
        x = x.view(-1, x.shape[-1])
        inner = torch.zeros((len(x), up.size(-1)))
        _add(inner, x, down, self._sampled_rows, scale)
        _add(y.view(-1, y.shape[-1]), inner, up, self._sampled_rows)


def _rows(places: torch.Tensor) -> Rows:
    return [
        (place, (places == place).nonzero()[:, 0]) for place in sorted(set(places.tolist())) if place >= 0
    ]


def _add(y: torch.Tensor, x: torch.Tensor, weights: torch.Tensor, rows: Rows, scale: float = 1.0) -> None:
    """Add `scale * x @ weights[place].T` to `y`, in the rows of each place.

    Args:
        y: Rows by outputs. It may have more columns than the weights, which stay as they are.
        x: Rows by inputs.
        weights: Places by 1 by outputs by inputs. The dimension of 1 may be missing.
        rows: The rows of each place.
    """
    for place, of_place in rows:
        weight = weights[place].view(-1, weights.shape[-1]).to(y.dtype)
        y[:, : len(weight)].index_add_(0, of_place, x[of_place].to(y.dtype) @ weight.T, alpha=scale)
