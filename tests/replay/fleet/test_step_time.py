"""The two laws of an engine step's time on an A100: 11.5 ms, 0.12 ms a sequence, 0.12 and 50 us a token."""

from typing import Any

import numpy as np
import pytest

from replay.fleet.kernel import scheduler
from replay.profile import load_profile
from tests.replay.fleet.build import fleet, of, serve

A100 = load_profile("a100-80gb")


def step_s(law: str, decodes: int, kv: int, prefill: int = 0) -> float:
    """The law itself, not compiled."""
    memory = fleet(0, of=A100, step_model=law).memory
    plain: Any = scheduler.step_s
    return float(plain.py_func(memory._replace(rules=memory.rules.view(np.recarray)), decodes, kv, prefill))


@pytest.mark.parametrize("kv", [1_000, 16_000, 60_000])
def test_with_sixteen_sequences_and_no_prompt_both_laws_agree_whatever_is_cached(kv: int) -> None:
    assert step_s("roofline", 16, kv) == pytest.approx(step_s("linear", 16, kv), rel=1e-12)


def test_a_short_prompt_is_free_behind_the_reading_of_the_weights() -> None:
    # Sixteen sequences and 184 prompt tokens are 200 tokens to multiply: 10 ms, as the weights take.
    assert step_s("roofline", 16, 0, 184) == step_s("roofline", 16, 0)
    assert step_s("roofline", 16, 0, 284) == pytest.approx(step_s("roofline", 16, 0) + 0.005, rel=0.01)


@pytest.mark.parametrize("prompt", [1, 100, 200, 3_770, 8_000])
def test_a_prompt_alone_never_takes_longer_than_by_the_linear_law(prompt: int) -> None:
    assert step_s("roofline", 0, 0, prompt) <= step_s("linear", 0, 0, prompt)


def test_a_fleet_takes_its_steps_by_the_law_of_its_conditions() -> None:
    ended = []
    for law in ("linear", "roofline"):
        made = fleet(of=A100, step_model=law)
        serve(made, (0.0, 100, 1), until=1.0)
        ended.append(of(made, "last_end"))

    # 11.5 ms and 100 tokens at 50 us; and those 5 ms within the 10 ms of the weights.
    assert ended == [pytest.approx(0.0165), pytest.approx(0.0115)]
