"""What a simulated replica reports of itself, as `EngineReport` does of a real one."""

import pytest

from replay.fleet.fleet import Fleet
from replay.fleet.layout import SLICE_S, SLICES, WINDOW_BINS
from serve_app.telemetry.latency_window import LatencyWindow
from serve_app.wire.signals import EngineSignals
from tests.replay.fleet.build import fleet, profile, serve


def report(made: Fleet, slot: int = 0) -> EngineSignals:
    return EngineSignals(*made.report([slot])[0].tolist())


def test_a_replica_in_the_midst_of_its_work() -> None:
    made = fleet(of=profile(max_num_seqs=2))
    # 0.020 for the first token of the first. Then it decodes, and of the second 999 tokens are prefilled; the
    # third waits. That step ends at 0.020 + 0.010 + 0.001 + 0.001 + 0.0999 = 0.1319.
    serve(made, (0.0, 100, 20), (0.005, 1500, 5), (0.010, 300, 5), until=0.050)
    said = report(made)

    assert (said.running_requests, said.waiting_requests, said.ongoing_requests) == (2, 1, 3)
    # Prompts without a token, computed in part or not; and the sequence that decodes with its token.
    assert (said.waiting_tokens, said.running_tokens) == (1800, 101)
    assert said.kv_cache_usage_ratio == (101 + 999) / 20_000
    assert said.kv_cache_tokens == 20_000
    assert said.prompt_tokens_total == 100 + 999
    assert (said.steps, said.step_prefill_tokens, said.step_batch, said.step_kv_tokens) == (2, 549.5, 0.5, 50)
    assert said.step_s == pytest.approx((0.020 + 0.1119) / 2)


def test_percentiles_are_those_of_the_latency_window() -> None:
    made = fleet(of=profile(max_num_seqs=64))
    window = LatencyWindow(SLICES * SLICE_S)
    # Alone each: prefill of 10 ms and 0.1 ms a token, no queue; a token after it of 11 ms and 10 us a token.
    for number in range(200):
        at, prompt = 0.5 * number, 1 + number * 37 % 900
        serve(made, (at, prompt, 2), until=at + 0.4)
        window.observe([0.010 + prompt * 0.0001], at + 0.010 + prompt * 0.0001)
    said = report(made)

    assert said.ttft_count == said.itl_count == window.count(made.now) == 60
    assert (said.ttft_queue_p50_s, said.ttft_queue_p99_s) == (pytest.approx(1e-4, rel=0.05),) * 2
    for percent in (50, 90, 95, 99):
        assert getattr(said, f"ttft_prefill_p{percent}_s") == pytest.approx(
            window.percentile(percent, made.now)
        )
    assert said.itl_p50_s < said.itl_p96_s <= said.itl_p99_s < 0.021

    made.advance(made.now + 31.0)
    assert report(made).ttft_count == report(made).itl_p50_s == 0
    assert made.memory.recent.shape[2:] == (SLICES + 1, WINDOW_BINS)


def test_the_preempted_wait_but_not_for_a_first_token() -> None:
    made = fleet(of=profile(kv_cache_tokens=1024, max_num_batched_tokens=1020))
    serve(made, (0.0, 1, 1), (0.005, 600, 40), (0.006, 420, 4), until=0.1700)
    said = report(made)

    assert (said.running_requests, said.waiting_requests) == (1, 1)
    # 600 + 3 tokens that decode, and 420 + 3 that have to be computed again.
    assert (said.running_tokens, said.waiting_tokens) == (603 + 423, 0)
