from dataclasses import replace

import pytest

from replay.capacity.measure import Limits, Prompts, plan_loads
from replay.capacity.observer import TrafficGuard, check_alone
from replay.capacity.server import (
    MeasurementError,
    Readiness,
    Scrape,
    arrivals_between,
    read_scrape,
    steps_between,
)
from replay.fit import StepSample, fit
from serve_app.policy.capacity_model import StepTime
from serve_app.settings.knobs import Knobs
from tests.replay.capacity.fake_application import exposition

GPU = Limits(max_model_len=16_384, kv_cache_tokens=445_000, max_num_seqs=128, max_num_batched_tokens=8192)
LAPTOP = Limits(max_model_len=2048, kv_cache_tokens=131_072, max_num_seqs=64, max_num_batched_tokens=2048)


@pytest.mark.parametrize("limits", [GPU, LAPTOP, replace(LAPTOP, kv_cache_tokens=4096)])
def test_every_load_fits_the_server(limits: Limits) -> None:
    for load in plan_loads(limits, 0):
        tokens = load.prompt_tokens + load.output_tokens
        assert tokens <= limits.max_model_len
        assert load.concurrency <= min(limits.max_num_seqs, 64)
        assert load.concurrency == 1 or load.concurrency * tokens <= limits.kv_cache_tokens
        assert min(load.prompt_tokens, load.output_tokens, load.concurrency) >= 1


@pytest.mark.parametrize("limits", [GPU, LAPTOP, replace(LAPTOP, max_num_seqs=2)])
def test_the_loads_tell_every_coefficient(limits: Limits) -> None:
    step_time = StepTime(0.0115, 0.00012, 1.2e-7, 5e-5)
    samples = []
    for load in plan_loads(limits, 0):
        # Where every request has its prompt prefilled and then decodes, one step after the other.
        kv_tokens = load.concurrency * (load.prompt_tokens + load.output_tokens / 2)
        prefill = load.concurrency * load.prompt_tokens / load.output_tokens
        step_s = step_time.decode_s(load.concurrency, kv_tokens) + step_time.per_prefill_token_s * prefill
        samples.append(StepSample(step_s, load.concurrency, kv_tokens, prefill))

    found = fit(samples).step

    assert found.per_kv_token_s == pytest.approx(step_time.per_kv_token_s, rel=1e-6)
    assert found.per_prefill_token_s == pytest.approx(step_time.per_prefill_token_s, rel=1e-6)


def test_the_order_is_the_seeds_and_the_loads_are_not() -> None:
    first, again, other = plan_loads(GPU, 1), plan_loads(GPU, 1), plan_loads(GPU, 2)

    assert first == again
    assert first != other
    assert set(first) == set(other)


def test_too_short_context_is_refused() -> None:
    with pytest.raises(ValueError, match="max_model_len = 64 and 131072 tokens of KV cache: prompts of 64"):
        plan_loads(replace(LAPTOP, max_model_len=64), 0)


def test_prompts_have_their_length_and_no_two_begin_alike() -> None:
    prompts = Prompts(list(range(40)), 0)
    drawn = [prompts.draw(48) for _ in range(200)]

    assert {len(prompt) for prompt in drawn} == {48}
    assert len({tuple(prompt[:16]) for prompt in drawn}) == 200
    assert Prompts(list(range(40)), 0).draw(48) == drawn[0]


def step_series(
    replica: str, steps: float, seconds: float, sequences: float, kv: float, prefill: float
) -> str:
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
    before = read_scrape(step_series("a", 100, 1.0, 400, 50_000, 0), "tide")
    after = read_scrape(step_series("a", 190, 2.8, 1120, 95_000, 900), "tide")

    (sample,) = steps_between(before, after).values()

    assert sample.step_s == pytest.approx(0.02)
    assert (sample.batch, sample.kv_tokens, sample.prefill_tokens) == (8.0, 500.0, 10.0)
    assert sample.weight == pytest.approx(0.9)  # 90 steps of 90 + 10


@pytest.mark.parametrize(
    "after",
    [
        step_series("a", 100, 1.0, 400, 50_000, 10),  # nothing new
        step_series("a", 5, 0.1, 4, 500, 1),  # a restart
        step_series("a", 150, 1.0, 400, 50_000, 10),  # cut in the middle of a report
    ],
)
def test_restart_or_torn_report_gives_no_sample(after: str) -> None:
    before = read_scrape(step_series("a", 100, 1.0, 400, 50_000, 10), "tide")

    assert steps_between(before, read_scrape(after, "tide")) == {}


def test_replicas_and_models_are_kept_apart() -> None:
    text = step_series("a", 10, 1, 1, 1, 1) + step_series("b", 20, 1, 1, 1, 1)
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


def scrape(steps: float = 0.0, arrivals: float = 0.0, replica: str = "a", busy: float = 0.0) -> Scrape:
    text = exposition("tide", replica, llm_steps_total=steps, llm_step_seconds_total=steps / 100)
    text += exposition("tide", replica, llm_running_requests=busy)
    return read_scrape(text + exposition("tide", "i", llm_arrivals_total=arrivals), "tide")


def seen(replicas: int, target: int, **more: str) -> Readiness:
    return Readiness(state="up", replicas=replicas, target_replicas=target, **more)


@pytest.mark.parametrize("knobs", [Knobs(), Knobs(min_replicas=0), Knobs(max_replicas=5, mode="advise")])
def test_one_replica_that_stays_alone_may_be_measured(knobs: Knobs) -> None:
    check_alone("tide", seen(1, 1), knobs)


@pytest.mark.parametrize(
    ("replicas", "target", "told"),
    [
        (0, 0, "tide has 0 ready replicas and 0 running or on their way"),
        (0, 1, "tide has 0 ready replicas and 1 running or on their way"),
        (1, 2, "tide has 1 ready replicas and 2 running or on their way"),
        (2, 2, "tide has 2 ready replicas"),
    ],
)
def test_any_other_number_is_refused_and_the_message_pins_one(replicas: int, target: int, told: str) -> None:
    with pytest.raises(MeasurementError) as caught:
        check_alone("tide", seen(replicas, target), Knobs())

    assert str(caught.value).startswith(told)
    assert "tideserve knobs set tide min_replicas=1 max_replicas=1" in str(caught.value)


def test_a_replica_that_cannot_start_says_why() -> None:
    with pytest.raises(MeasurementError, match=r"pending_capacity \(no free GPU\)"):
        check_alone("tide", seen(0, 1, phase="pending_capacity", reason="no free GPU"), Knobs())


def test_scrapes_become_samples() -> None:
    guard = TrafficGuard("tide", scrape(steps=50, arrivals=10))

    assert guard.add(scrape(steps=50, arrivals=10), sent=1) is None
    sample = guard.add(scrape(steps=150, arrivals=11), sent=3)

    assert sample is not None
    assert sample.step_s == pytest.approx(0.01)
