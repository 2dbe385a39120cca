"""Conversations of a run, and the prompt tokens that prefix caches held."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from loadtests.record import Record


@dataclass(frozen=True, slots=True)
class Conversations:
    """Conversations of which a turn was sent, by why they ended (`record.ConversationEnd`)."""

    conversations: int
    turns: int
    """Requests that are a turn of one."""
    whole: int
    context: int
    time: int
    unanswered: int
    cut_short: int
    """Under way when the run was interrupted."""


def conversations(records: Sequence[Record]) -> Conversations | None:
    """Those of a run; None if it had none."""
    turns = [record for record in records if record.session is not None]
    if not turns:
        return None
    count = len({record.session for record in turns})
    ends = Counter(record.conversation_end for record in turns if record.conversation_end)
    return Conversations(
        conversations=count,
        turns=len(turns),
        whole=ends["whole"],
        context=ends["context"],
        time=ends["time"],
        unanswered=ends["unanswered"],
        cut_short=count - ends.total(),
    )


@dataclass(frozen=True, slots=True)
class PromptCache:
    """Prompt tokens of the requests of which the server told how many were cached.

    Where it told that of none, those of all whose prompt it counted. It counts none of a request that ended
    before its usage came.
    """

    requests: int
    prompt_tokens: int
    cached_tokens: int | None
    """Found in a prefix cache; None where the server does not tell."""
    cached_share: float | None
    """Of `prompt_tokens`, 0 to 1."""
    infinite_cache_tokens: int | None
    """What one cache without a bound, shared by all replicas, would have had: see `known_tokens`. None where
    the scenario has no prompts that share anything. It knows no blocks: a real cache holds whole blocks of
    tokens, 16 of them in vLLM as a rule."""
    infinite_cache_share: float | None
    """Of `prompt_tokens`, 0 to 1."""


def prompt_cache(records: Sequence[Record]) -> PromptCache | None:
    """That of a run; None if the server counted no prompt."""
    counted = [record for record in records if record.prompt_tokens]
    told = [record for record in counted if record.cached_tokens is not None]
    chosen = told or counted
    total = sum(record.prompt_tokens or 0 for record in chosen)
    if not total:
        return None
    cached = sum(record.cached_tokens or 0 for record in told) if told else None
    infinite = None
    if any(record.session is not None or record.planned_prefix_tokens for record in chosen):
        known = known_tokens(records)
        infinite = sum(known.get(record.index, 0) for record in chosen)
    return PromptCache(
        requests=len(chosen),
        prompt_tokens=total,
        cached_tokens=cached,
        cached_share=None if cached is None else cached / total,
        infinite_cache_tokens=infinite,
        infinite_cache_share=None if infinite is None else infinite / total,
    )


def known_tokens(records: Sequence[Record]) -> dict[int, int]:
    """By `index`, the tokens of the longest beginning that some earlier request shares with it.

    Of a later turn of a conversation, the prompt and the answer of the turn before. Of another request, its
    shared prefix, if a request with the same had its first token before this one was sent: planned tokens,
    scaled by how much longer the whole prompt was than planned.
    """
    turns = {(record.session, record.turn): record for record in records}
    since: dict[tuple[str, str, int], float] = {}
    for record in records:
        if record.planned_prefix_tokens and record.first_s is not None:
            key = _prefix(record)
            since[key] = min(since.get(key, record.first_s), record.first_s)
    known = {}
    for record in records:
        prompt = record.planned_prompt_tokens if record.prompt_tokens is None else record.prompt_tokens
        before = turns.get((record.session, record.turn - 1)) if record.session is not None else None
        shared = 0
        if before is not None:
            shared = _tokens(before)
        elif record.planned_prefix_tokens and since.get(_prefix(record), record.sent_s) < record.sent_s:
            shared = round(record.planned_prefix_tokens * prompt / record.planned_prompt_tokens)
        known[record.index] = min(shared, prompt)
    return known


def _prefix(record: Record) -> tuple[str, str, int]:
    return record.model, record.kind, record.prefix


def _tokens(record: Record) -> int:
    """Of the prompt and the answer: as the server counted them, else as planned."""
    prompt = record.planned_prompt_tokens if record.prompt_tokens is None else record.prompt_tokens
    return prompt + (record.planned_output_tokens if record.output_tokens is None else record.output_tokens)
