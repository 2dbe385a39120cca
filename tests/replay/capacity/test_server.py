import pytest

from replay.capacity.server import arrivals_between, read_scrape, steps_between
from tests.replay.capacity.fake_application import exposition


def report(replica: str, steps: float, seconds: float, sequences: float, kv: float, prefill: float) -> str:
    return exposition(
        "tide",
        replica,
        llm_steps_total=steps,
        llm_step_seconds_total=seconds,
        llm_step_sequences_total=sequences,
        llm_step_kv_tokens_total=kv,
        llm_step_prefill_tokens_total=prefill,
    )


def test_between_two_scrapes_the_sums_become_a_mean_step() -> None:
    before = read_scrape(report("a", 100, 1.0, 400, 50_000, 0), "tide")
    after = read_scrape(report("a", 190, 2.8, 1120, 95_000, 900), "tide")

    (sample,) = steps_between(before, after).values()

    assert sample.step_s == pytest.approx(0.02)
    assert (sample.batch, sample.kv_tokens, sample.prefill_tokens) == (8.0, 500.0, 10.0)
    assert sample.weight == pytest.approx(0.9)  # 90 steps of 90 + 10


@pytest.mark.parametrize(
    "after",
    [
        report("a", 100, 1.0, 400, 50_000, 10),  # nothing new
        report("a", 5, 0.1, 4, 500, 1),  # a restart
        report("a", 150, 1.0, 400, 50_000, 10),  # cut in the middle of a report
    ],
)
def test_restart_or_torn_report_gives_no_sample(after: str) -> None:
    before = read_scrape(report("a", 100, 1.0, 400, 50_000, 10), "tide")

    assert steps_between(before, read_scrape(after, "tide")) == {}


def test_replicas_and_models_are_kept_apart() -> None:
    text = report("a", 10, 1, 1, 1, 1) + report("b", 20, 1, 1, 1, 1)
    text += exposition("other", "c", llm_steps_total=99)

    assert read_scrape(text, "tide").of("llm_steps_total") == {"a": 10.0, "b": 20.0}
    assert set(steps_between(read_scrape("", "tide"), read_scrape(text, "tide"))) == {"a", "b"}


def test_arrivals_are_counted_over_all_ingress_replicas() -> None:
    before = read_scrape(exposition("tide", "i1", llm_arrivals_total=10), "tide")
    after = read_scrape(
        exposition("tide", "i1", llm_arrivals_total=14) + exposition("tide", "i2", llm_arrivals_total=3),
        "tide",
    )

    assert arrivals_between(before, after) == 7
