import json
from dataclasses import replace

from benchmarks.serving_overhead.load import Measured, prompts
from benchmarks.serving_overhead.report import METRICS, Report, Spread, to_json, to_markdown, warnings
from benchmarks.serving_overhead.rounds import Started, rotated
from benchmarks.serving_overhead.servers import KINDS

BARE = Measured(
    server="bare",
    round=1,
    concurrency=8,
    requests=32,
    tokens=2048,
    wall_s=1.0,
    tokens_per_s=2000.0,
    ttft_p50_s=0.020,
    ttft_p95_s=0.030,
    itl_p50_s=0.002,
    itl_p95_s=0.003,
    longest_gap_p95_s=0.010,
    tokens_per_arrival=1.0,
    server_cpu_s_per_token=0.0006,
    cpu_s_per_token={"engine-core": 0.0004, "vLLM's own front end": 0.0002, "resource tracker": 1e-8},
    server_cores=1.2,
    client_cores=0.05,
    client_wait=0.001,
    other_cores=0.02,
)


def report(*measurements: Measured) -> Report:
    return Report(
        titles={"bare": "bare vLLM", "tideserve": "Tideserve"},
        skipped={"ray-llm": "not installed"},
        notes=["a note"],
        settings={"rounds": "2"},
        machine={"cores": "2"},
        versions={"python": "3.11"},
        starts=[Started(server, 20.0, 0.1, 2 << 30) for server in ("bare", "tideserve")],
        measurements=measurements,
    )


TWO_ROUNDS = report(
    BARE,
    replace(BARE, server="tideserve", tokens_per_s=1800.0),
    replace(BARE, server="tideserve", tokens_per_s=800.0, round=2),
    replace(BARE, tokens_per_s=1000.0, round=2),
)


def test_ratios_pair_rounds_whatever_the_order_they_ran_in() -> None:
    cell = TWO_ROUNDS.cell("tideserve", 8, METRICS[0])

    assert cell.value == Spread(1300.0, 800.0, 1800.0)
    assert cell.ratio is not None
    assert (cell.ratio.low, cell.ratio.high) == (0.8, 0.9)


def test_a_spread_is_of_unsorted_values() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(median=2.0, low=1.0, high=3.0)


def test_a_zero_in_the_base_has_no_ratio() -> None:
    nothing = report(replace(BARE, itl_p50_s=0.0), replace(BARE, server="tideserve"))

    cells = {(cell.server, cell.metric): cell for cell in nothing.cells()}

    assert cells["tideserve", "itl_p50_ms"].ratio is None


def test_markdown_shows_medians_ratios_spreads_and_what_was_skipped() -> None:
    text = to_markdown(TWO_ROUNDS)

    assert "1,300 (0.85)" in text
    assert "800-1,800 (0.80-0.90)" in text
    assert "**Skipped:** ray-llm: not installed" in text
    assert "Doubtful" not in text


def test_markdown_shows_what_a_token_costs_each_process() -> None:
    ours = {"engine-core": 0.00041, "engine-replica": 0.00015, "raylet": 4e-7, "dashboard": 8e-7}
    text = to_markdown(report(BARE, replace(BARE, server="tideserve", cpu_s_per_token=ours)))

    assert [
        line.split() for line in text.splitlines() if line.startswith("| engine") or "others" in line
    ] == [
        ["|", "engine-core", "|", "400", "|", "410", "|"],
        ["|", "engine-replica", "|", "|", "150", "|"],
        ["|", "others", "|", "0", "|", "1", "|"],
    ]


def test_json_holds_every_measurement_and_is_strict() -> None:
    document = json.loads(to_json(TWO_ROUNDS), parse_constant=lambda name: 1 / 0)

    assert len(document["measurements"]) == 4
    assert len(document["summary"]) == 2 * len(METRICS)


def test_a_busy_client_a_late_client_and_a_shared_machine_are_called_out() -> None:
    found = warnings(report(replace(BARE, client_cores=0.6, client_wait=0.1, other_cores=0.3)))

    assert len(found) == 3
    assert all("round 1, bare vLLM, 8 at once" in warning for warning in found)


def test_every_server_goes_first_in_turn() -> None:
    kinds = [KINDS["bare"], KINDS["tideserve"], KINDS["ray-llm"]]

    assert [rotated(kinds, n)[0].name for n in range(4)] == ["bare", "tideserve", "ray-llm", "bare"]


def test_prompts_share_no_prefix_and_never_repeat() -> None:
    source = prompts(98)
    first = [next(source) for _ in range(100)]

    assert len({prompt.partition(":")[0] for prompt in first}) == 100
