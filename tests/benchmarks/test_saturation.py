import asyncio

import pytest
from vllm.config import VllmConfig
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM

from benchmarks.saturation import __main__ as command
from benchmarks.saturation.measure import Measured, Window
from benchmarks.saturation.stub_core import StubExecutor
from benchmarks.saturation.summary import memory_table, rates_table
from benchmarks.saturation.systems import STUB
from serve_app.engine.continuation import core_continues
from tests.engine.stub_engine_core import configured

STEP_US = 2000


@pytest.fixture(scope="module")
def config() -> VllmConfig:
    """vLLM's configuration of the embedded model with the stub below it."""
    return configured(engine_args={"distributed_executor_backend": STUB}, max_model_len=2048)[2]


def test_a_front_end_believes_that_the_core_below_the_stub_can_continue_streams(config: VllmConfig) -> None:
    assert core_continues(config)
    assert f"{StubExecutor.__module__}.{StubExecutor.__name__}" == STUB


async def test_the_stub_makes_max_tokens_words_up_for_each_request(config: VllmConfig) -> None:
    llm = AsyncLLM.from_vllm_config(config)

    async def text(number: int, tokens: int) -> tuple[str, str]:
        params = SamplingParams(max_tokens=tokens, seed=STEP_US, output_kind=RequestOutputKind.FINAL_ONLY)
        async for output in llm.generate("the tide", params, f"r-{number}"):
            last = output.outputs[0]
        return last.text, str(last.finish_reason)

    try:
        answers = await asyncio.gather(*(text(number, number) for number in (1, 5, 64)))
        leaving = asyncio.ensure_future(text(7, 10_000))
        await text(8, 2)
        leaving.cancel()  # its client leaves
        again = await text(9, 3)
    finally:
        llm.shutdown()
        await asyncio.sleep(0)  # the sockets are closed by the loop
        llm.engine_core.resources.ctx.destroy(linger=0)

    assert [text.count(" ") for text, _ in answers] == [1, 5, 64]
    assert {reason for _, reason in answers} == {"length"}
    assert all(word.isalpha() for text, _ in answers for word in text.split())
    assert len(set(answers[2][0].split())) > 32
    assert again[0].count(" ") == 3


def window(tokens: int, **cpu_s: float) -> Window:
    names = {name.replace("_", "-"): seconds for name, seconds in cpu_s.items()}
    return Window(tokens, tokens, 2.0, 0.1, names)


def test_the_tables_have_medians_and_ratios_round_by_round() -> None:
    found = []
    for number, (theirs_s, ours_s) in enumerate([(1.0, 0.5), (2.0, 0.5), (1.0, 1.0)]):
        theirs = Window(10_000, 10_000, 2.0, 0.1, {"vLLM's own front end": theirs_s, "engine-core": 0.1})
        ours = window(10_000, engine_replica=ours_s, ingress=0.25, haproxy=0.2, engine_core=0.1, gcs=0.1)
        found.append(Measured("vllm", number, 32, theirs, None, {"vLLM's own front end": 1 << 20}))
        memory = {"engine-replica": 2 << 20, "ingress": number << 20}
        found.append(Measured("tideserve", number, 32, ours, ours, memory))

    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in lines(rates_table(found, paced))[2:]]
    most = lines(rates_table(found, lambda one: one.most))

    assert rows[0] == ["32", "vllm", "5,000", "1.00", "10,000", "", "", "100.0", "", "", "10.0", ""]
    assert rows[1][2:8] == ["5,000", "1.00", "20,000", "2.00", "40,000", "50.0"]
    assert rows[1][8:] == ["25.0", "20.0", "10.0", "10.0"]
    assert len(most) == 3
    assert "vllm" not in most[2]


def test_memory_is_shown_time_after_time_with_the_most_streams_open() -> None:
    found = [
        Measured("tideserve", number, streams, window(1), None, {"ingress": mib << 20, "gcs": 7})
        for number, streams, mib in [(1, 32, 1), (1, 64, 2), (1, 64, 4), (2, 64, 4), (2, 64, 4)]
    ]

    assert [cell.strip() for cell in lines(memory_table(found))[2].split("|")[1:4]] == [
        "tideserve",
        "ingress",
        "3.0 → 4.0",
    ]


@pytest.mark.parametrize(
    "arguments", [["--systems", "nginx"], ["--streams", "few"], ["--rounds", "0"], ["--rate", "-1"]]
)
def test_a_wrong_command_line_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.parse(arguments)

    assert ended.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def paced(one: Measured) -> Window:
    return one.paced


def lines(table: str) -> list[str]:
    return table.splitlines()
