"""The recorded traces, where they are at hand: counts and totals as they were published."""

from pathlib import Path

import pytest

from traces import open_trace

TRACES = Path(__file__).parents[3] / "shared" / "traces"

pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason=f"no recorded traces at {TRACES}")


@pytest.mark.parametrize(
    ("file", "requests", "inputs", "outputs", "first_s", "last_s"),
    [
        ("raw/AzureLLMInferenceTrace_code.csv.gz", 8_819, 18_059_974, 245_896, 0.0, 3435.948056),
        ("raw/AzureLLMInferenceTrace_conv.csv.gz", 19_366, 22_361_870, 4_088_665, 0.0, 3501.721937),
        ("raw/mooncake-synthetic.jsonl.gz", 3_993, 61_194_628, 595_432, 0.0, 1022.025),
        ("windows/azure-code.csv.gz", 26_453, 34_334_822, 763_359, 0.161, 3437.179),
        ("windows/azure-conv.csv.gz", 116_346, 109_951_110, 24_596_585, 0.279, 3502.958),
        ("windows/on-off.csv.gz", 73_446, 106_660_204, 2_628_817, 2400.0, 10_800.0),
        ("windows/servegen-m-large.csv.gz", 290_056, 198_609_857, 36_675_394, 0.0, 7200.0),
        ("windows/servegen-r1.csv.gz", 154_562, 84_542_142, 58_672_111, 2.924, 10_799.988),
    ],
)
def test_a_recorded_trace_is_read_whole(
    file: str, requests: int, inputs: int, outputs: int, first_s: float, last_s: float
) -> None:
    chunks = list(open_trace(TRACES / file).chunks())

    assert sum(len(chunk) for chunk in chunks) == requests
    assert sum(int(chunk.input_tokens.sum()) for chunk in chunks) == inputs
    assert sum(int(chunk.output_tokens.sum()) for chunk in chunks) == outputs
    assert chunks[0].arrival_s[0] == pytest.approx(first_s, abs=1e-6)
    assert chunks[-1].arrival_s[-1] == pytest.approx(last_s, abs=1e-6)


def test_mooncakes_prompts_share_their_blocks() -> None:
    trace = open_trace(TRACES / "raw/mooncake-synthetic.jsonl.gz")
    blocks = [block for chunk in trace.chunks() for block in chunk.blocks.tolist()]

    assert trace.block_tokens == 512
    assert len(set(blocks)) < len(blocks) / 2
