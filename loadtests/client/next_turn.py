"""Whether a conversation goes on after an answer, and when."""

import math
from dataclasses import replace

from loadtests.planned import Planned
from loadtests.record import Record

TEMPLATE_TOKENS = 16
"""What a chat template may add for two more messages: Llama 3 and ChatML take 4 or 5 tokens for each."""


def with_next_turn(record: Record, planned: Planned, context_tokens: int | None, until_s: float) -> Record:
    """`record` with the time of the turn after it, or the reason why none comes.

    Args:
        record: How the turn `planned` ended.
        planned: The turn; one that stands alone is returned as it is.
        context_tokens: Of the model; None: not known, and then nothing is too long.
        until_s: Seconds of the run; no turn begins then or later.
    """
    following = planned.following
    if planned.session is None:
        return record
    if record.outcome != "answered":
        return replace(record, conversation_end="unanswered")
    if following is None:
        return replace(record, conversation_end="whole")
    if context_tokens is not None and expected_tokens(record, planned, following) > context_tokens:
        return replace(record, conversation_end="context")
    at_s = record.ended_s + following.think_s
    if at_s >= until_s:
        return replace(record, conversation_end="time")
    return replace(record, next_at_s=at_s)


def expected_tokens(record: Record, planned: Planned, following: Planned) -> int:
    """Tokens of prompt and answer that the turn after `record` is expected to have.

    The prompt and the answer before it are as the server counted them. A new message has as many more tokens
    than planned as that prompt had: its words are not one token each in every vocabulary.
    """
    prompt = planned.prompt_tokens if record.prompt_tokens is None else record.prompt_tokens
    answer = planned.output_tokens if record.output_tokens is None else record.output_tokens
    longer = max(1.0, prompt / planned.prompt_tokens)
    message = math.ceil(following.own_tokens * longer)
    return prompt + answer + message + TEMPLATE_TOKENS + following.output_tokens
