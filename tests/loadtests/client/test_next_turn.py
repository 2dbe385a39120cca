"""Whether a conversation goes on."""

import math
from dataclasses import replace
from typing import Any

from loadtests.client.request import TEMPLATE_TOKENS, expected_tokens, with_next_turn
from loadtests.record import Record
from tests.loadtests import samples
from tests.loadtests.client.driving import planned

SECOND = planned(
    1, prompt_tokens=190, output_tokens=30, prefix_tokens=100, history_tokens=70, think_s=5.0, session=0
)
FIRST = planned(
    0, prompt_tokens=120, output_tokens=50, prefix_tokens=100, session=0, turn=1, following=SECOND
)


def ended(**fields: Any) -> Record:
    return samples.record(
        pieces_s=(1.0, 2.0), ended_s=10.0, **({"prompt_tokens": 120, "output_tokens": 50} | fields)
    )


def test_no_turn_begins_at_the_end_of_the_scenario() -> None:
    assert with_next_turn(ended(), FIRST, None, 15.0).conversation_end == "time"
    assert with_next_turn(ended(), FIRST, None, 15.1).next_at_s == 15.0


def test_a_turn_may_fill_the_context_and_not_exceed_it() -> None:
    fits = 120 + 50 + 20 + TEMPLATE_TOKENS + 30

    assert with_next_turn(ended(), FIRST, fits, math.inf).next_at_s == 15.0
    assert with_next_turn(ended(), FIRST, fits - 1, math.inf).conversation_end == "context"


def test_a_message_is_expected_as_much_longer_than_planned_as_the_prompt_before_it_was() -> None:
    assert expected_tokens(ended(prompt_tokens=180), FIRST, SECOND) == 180 + 50 + 30 + TEMPLATE_TOKENS + 30
    assert expected_tokens(ended(prompt_tokens=60), FIRST, SECOND) == 60 + 50 + 20 + TEMPLATE_TOKENS + 30


def test_a_server_that_counts_nothing_is_taken_to_count_as_planned() -> None:
    untold = replace(ended(), prompt_tokens=None, output_tokens=None)

    assert expected_tokens(untold, FIRST, SECOND) == expected_tokens(ended(), FIRST, SECOND)
