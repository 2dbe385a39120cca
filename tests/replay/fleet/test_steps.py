"""Steps of one engine, by hand: 10 ms a step + 1 ms a sequence + 10 us a KV token + 100 us a prompt token."""

import pytest

from replay.fleet.layout import E2E, ITL, RATIO, SHORTEST_S, TTFT
from tests.replay.fleet.build import fleet, profile, serve, total


def test_latencies_are_kept_to_a_hundredth() -> None:
    alone = fleet()
    serve(alone, (0.0, 300, 3), until=1.0)
    histograms = alone.memory.histograms

    def only(which: int) -> float:
        places = histograms[which].nonzero()[0]
        return float(SHORTEST_S * RATIO ** (places.mean() + 0.5))

    assert only(TTFT) == pytest.approx(0.040, rel=0.01)
    assert only(ITL) == pytest.approx(0.014, rel=0.01)
    assert only(E2E) == pytest.approx(0.06801, rel=0.01)


def test_too_long_requests_are_refused_and_missed() -> None:
    small = fleet(of=profile(kv_cache_tokens=1024))
    serve(small, (70.0, 1000, 24), (71.0, 1000, 25), until=80.0)

    assert (total(small, "too_long"), total(small, "rejected"), total(small, "finished")) == (1, 1, 1)
    minute = small.memory.windows[1]
    assert (minute["requests"], minute["rejected"], minute["ttft_ok"]) == (2, 1, 1)


def test_requests_too_slow_on_an_empty_replica_are_infeasible() -> None:
    made = fleet()
    # 0.010 + 0.190 = 0.2, the target; two chunks of a longer prompt have two steps' base.
    serve(made, (0.0, 1000, 1), (1.0, 1800, 1), (2.0, 1801, 1), until=3.0)

    assert total(made, "infeasible") == 1
