"""LoRA on the CPU, against the formula for each row."""

import pytest
import torch
from vllm.lora.layers.utils import LoRAMapping

from serve_app.patches.cpu_lora import PerAdapterWrapper

PLACES, RANK, INPUTS, OUTPUTS, SCALE = 2, 3, 5, 4, 0.5
ADAPTERS = (7, 0, 9, 9, 0, 7)
"""The adapter of each row; 0 for none. 9 has the last place."""
PLACE_OF = {7: 0, 9: 1}


@pytest.fixture(params=[True, False], ids=["prefill", "decode"])
def wrapper(request: pytest.FixtureRequest) -> PerAdapterWrapper:
    torch.manual_seed(1)
    wrapper = PerAdapterWrapper(len(ADAPTERS), len(ADAPTERS), device="cpu")
    mapping = LoRAMapping(ADAPTERS, ADAPTERS, is_prefill=request.param)
    wrapper.update_metadata(mapping, list(PLACE_OF), PLACES, 100)
    return wrapper


def weights(*shape: int) -> torch.Tensor:
    return torch.randn(PLACES, 1, *shape)


def change(x: torch.Tensor, down: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Return what the adapter of each row adds to it."""
    added = torch.zeros(len(x), up.shape[-2])
    for row, adapter in enumerate(ADAPTERS):
        if adapter:
            place = PLACE_OF[adapter]
            added[row] = x[row] @ (SCALE * up[place, 0] @ down[place, 0]).T
    return added


def test_each_slice_of_a_row_gets_its_own_adapter(wrapper: PerAdapterWrapper) -> None:
    x, sizes = torch.randn(len(ADAPTERS), INPUTS), (OUTPUTS, 2)
    y = torch.randn(len(ADAPTERS), sum(sizes))
    downs, ups = [weights(RANK, INPUTS) for _ in sizes], [weights(size, RANK) for size in sizes]
    parts = [change(x, down, up) for down, up in zip(downs, ups, strict=True)]
    expected = y + torch.cat(parts, dim=1)

    wrapper.add_lora_linear(y, x, tuple(downs), tuple(ups), SCALE, sizes)

    torch.testing.assert_close(y, expected)


def test_embedding_and_logits_get_their_own_adapter(wrapper: PerAdapterWrapper) -> None:
    x, down, up = torch.randn(len(ADAPTERS), INPUTS), weights(RANK, INPUTS), weights(OUTPUTS, RANK)
    embedded, logits = torch.randn(2, len(ADAPTERS), OUTPUTS + 1)  # vLLM pads the vocabulary
    inner = torch.stack(
        [
            down[PLACE_OF[adapter], 0] @ row if adapter else row[:RANK]
            for adapter, row in zip(ADAPTERS, x, strict=True)
        ]
    )
    expected = torch.stack([embedded, logits])
    expected[0, :, :OUTPUTS] += change(x, down, up) / SCALE
    expected[1, :, :OUTPUTS] += change(x, down, up)

    wrapper.add_lora_embedding(embedded, inner, up)
    wrapper.add_lora_logits(logits, x, down, up, SCALE)

    torch.testing.assert_close(torch.stack([embedded, logits]), expected)
