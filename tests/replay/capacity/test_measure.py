from dataclasses import replace

import pytest

from replay.capacity.measure import Limits, Prompts, plan_loads
from replay.fit import StepSample, fit
from serve_app.policy.capacity_model import StepTime

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
