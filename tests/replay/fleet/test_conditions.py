from typing import Any

import pytest

from replay.fleet.conditions import rules
from serve_app.ingress.admission import MOST_PROMPT_TOKENS
from serve_app.ingress.prefix_index import BYTES_PER_TOKEN
from serve_app.ingress.replica_choice import SEQUENCE_TOKENS
from serve_app.ingress.request_counters import COLD_AFTER_S
from tests.replay.fleet.build import conditions, profile


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"routing": "round-robin"},
            "routing = 'round-robin': must be one of prefix-aware, grouped, tokens, two-choices, text-tree",
        ),
        ({"step_law": "cubic"}, "step_law = 'cubic': must be one of linear, roofline"),
        (
            {"warm_node_start_s": (9.0, 3.0)},
            r"warm_node_start_s = \(9.0, 3.0\): must be \(least, most\), from 0",
        ),
        ({"warm_nodes": -1}, "warm_nodes = -1: must be at least 0"),
        ({"cold_start_s": (9.0, 3.0)}, r"cold_start_s = \(9.0, 3.0\): must be \(least, most\), from 0"),
        ({"start_failures": 1.0}, "start_failures = 1.0: must be from 0 to below 1"),
        ({"capacity": 0}, "capacity = 0: must be at least 1"),
        ({"max_held": -1}, "max_held = -1: must be at least 0"),
        ({"max_ongoing_requests": 0}, "max_ongoing_requests = 0: must be at least 1"),
        ({"body_noise": float("nan")}, "body_noise = nan: must be from 0 to 1"),
    ],
)
def test_what_cannot_be_is_refused_by_name_value_and_bound(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        conditions(**changed)


def test_a_step_that_cannot_have_a_token_for_everybody_is_refused() -> None:
    with pytest.raises(ValueError, match="max_num_batched_tokens = 16: must be at least max_num_seqs = 17"):
        rules(profile(max_num_batched_tokens=16, max_num_seqs=17), conditions())


def test_the_rules_of_the_ingress_are_its_own() -> None:
    rule = rules(profile(), conditions())[0]

    assert rule["sequence_tokens"] == SEQUENCE_TOKENS
    assert rule["bytes_per_pending_token"] == BYTES_PER_TOKEN
    assert rule["most_pending_tokens"] == MOST_PROMPT_TOKENS
    assert rule["cold_after_s"] == COLD_AFTER_S
