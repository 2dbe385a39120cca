import tracemalloc

import pytest

from serve_app.telemetry.fleet_samples import FleetSamples, quantile

COUNTS = {"tide": {"ready": 2}}


def exposition(tokens: int, slow: int = 0, hits: int = 0) -> str:
    return f"""
# TYPE llm_completion_tokens_total counter
llm_completion_tokens_total{{lane="standard",model="tide",replica="a"}} {tokens}.0
llm_completion_tokens_total{{lane="background",model="tide",replica="a"}} {tokens}.0
llm_user_ttft_seconds_bucket{{cold="false",le="0.1",model="tide",replica="i"}} 10.0
llm_user_ttft_seconds_bucket{{cold="false",le="0.2",model="tide",replica="i"}} {10 + slow}.0
llm_user_ttft_seconds_bucket{{cold="false",le="+Inf",model="tide",replica="i"}} {10 + slow}.0
llm_user_ttft_seconds_bucket{{cold="true",le="+Inf",model="tide",replica="i"}} {1000 * slow}.0
llm_prefix_cache_hits_total{{model="tide",replica="a"}} {hits}
llm_prefix_cache_queries_total{{model="tide",replica="a"}} {4 * hits}
llm_running_requests{{lane="standard",model="tide",replica="a"}} 3.0
llm_running_requests{{lane="standard",model="tide",replica="b"}} 4.0
llm_held_requests{{model="tide",replica="i"}} 5.0
llm_running_requests{{lane="standard",model="other",replica="c"}} 9.0
"""


def test_gauges_are_summed_over_replicas_and_the_first_sample_has_no_rate() -> None:
    sample = FleetSamples().add(exposition(50, 7), 100.0, COUNTS)

    assert sample == {
        "at": 100.0,
        "models": {
            "tide": {
                "ready": 2, "running_requests standard": 7, "held_requests": 5,
                "completion_tokens_per_second": 0.0, "prompt_tokens_per_second": 0.0,
            }
        },
    }  # fmt: skip


def test_rates_are_since_the_last_sample_and_latencies_of_the_window() -> None:
    samples = FleetSamples()
    samples.add(exposition(50), 100.0, COUNTS)
    samples.add(exposition(100, slow=8, hits=10), 105.0, COUNTS)
    found = samples.add(exposition(150, slow=8, hits=10), 110.0, COUNTS)["models"]["tide"]

    assert found["completion_tokens_per_second"] == 20.0
    assert (found["ttft_p50_s"], found["cached_share"]) == (0.15, 0.25)
    later = samples.add(exposition(150, slow=8, hits=10), 140.0, COUNTS)["models"]["tide"]
    assert "ttft_p50_s" not in later
    assert "cached_share" not in later


def test_a_series_that_appears_counts_from_zero_for_the_whole_window() -> None:
    samples = FleetSamples()
    without_hits = "\n".join(line for line in exposition(50).splitlines() if "prefix_cache_hits" not in line)
    samples.add(without_hits, 100.0, COUNTS)
    shares = [
        samples.add(exposition(50, hits=10), at, COUNTS)["models"]["tide"].get("cached_share")
        for at in (105.0, 110.0, 130.0, 135.0)
    ]

    assert shares == [0.25, 0.25, 0.25, None]


def test_a_replica_that_restarts_counts_from_zero() -> None:
    samples = FleetSamples()
    samples.add(exposition(1000), 100.0, COUNTS)
    found = samples.add(exposition(20), 110.0, COUNTS)["models"]["tide"]

    assert found["completion_tokens_per_second"] == 4.0


def test_a_replica_that_misses_one_scrape_counts_on_from_its_last_values() -> None:
    samples = FleetSamples()
    samples.add(exposition(1000), 100.0, COUNTS)
    samples.add("", 105.0, COUNTS)
    found = samples.add(exposition(1020), 110.0, COUNTS)["models"]["tide"]

    assert found["completion_tokens_per_second"] == 8.0


def test_the_memory_holds_no_labels_of_replicas_that_are_gone() -> None:
    samples = FleetSamples()

    def add(generation: int) -> int:
        """Sample 100 series of a new replica every minute. Returns the bytes in use."""
        labels = [f'model="tide",le="{n}",replica="{"r" * 400}{generation}"' for n in range(100)]
        lines = [f"llm_inter_token_seconds_bucket{{{each}}} 1.0\n" for each in labels]
        samples.add("".join(lines), 60.0 * generation, COUNTS)
        del labels, lines
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    used = [add(generation) for generation in range(60)]
    tracemalloc.stop()

    assert used[-1] - used[20] < 20 * 100 * 400  # half of what the labels of 40 replicas have


def test_samples_of_the_last_15_minutes_are_kept() -> None:
    samples = FleetSamples()
    for at in range(0, 1000, 100):
        samples.add("", float(at), COUNTS)

    assert [sample["at"] for sample in samples.kept] == [100.0 * number for number in range(1, 10)]


@pytest.mark.parametrize(("share", "value"), [(0.25, 0.5), (0.5, 1.0), (0.75, 1.5), (0.9, 1.8), (1.0, 2.0)])
def test_quantiles_are_interpolated(share: float, value: float) -> None:
    assert quantile([(1.0, 10), (2.0, 20), (float("inf"), 20)], share) == pytest.approx(value)


def test_a_quantile_beyond_the_last_bucket_is_its_bound() -> None:
    assert quantile([(1.0, 1), (float("inf"), 10)], 0.9) == 1.0
