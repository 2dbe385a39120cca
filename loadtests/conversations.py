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
    """The conversations of a run; None if it had none."""
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
    """Prompt tokens of the requests with reported cached tokens; else of all requests with a reported
    prompt."""

    requests: int
    prompt_tokens: int
    cached_tokens: int | None
    """Found in a prefix cache; None where the server reports none."""
    cached_share: float | None
    """A share of `prompt_tokens`, 0 to 1."""
    infinite_cache_tokens: int | None
    """The tokens that one unlimited cache, shared by all replicas, would have found: see `known_tokens`. A
    real cache holds only whole blocks, of 16 tokens in vLLM. None where prompts share nothing."""
    infinite_cache_share: float | None
    """A share of `prompt_tokens`, 0 to 1."""


def prompt_cache(records: Sequence[Record]) -> PromptCache | None:
    """The prompt tokens of a run; None if the server counted none."""
    counted = [record for record in records if record.prompt_tokens]
    reported = [record for record in counted if record.cached_tokens is not None]
    chosen = reported or counted
    total = sum(record.prompt_tokens or 0 for record in chosen)
    if not total:
        return None
    cached = sum(record.cached_tokens or 0 for record in reported) if reported else None
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
    """By `index`, the tokens of the longest prefix that an earlier request shares with it.

    For a later turn of a conversation, this is the prompt and the answer of the turn before. For another
    request it is the shared prefix, if a request with the same prefix had its first token before this one was
    sent: planned tokens, scaled as the whole prompt was.
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
    """Prompt and answer, as the server counted them, else as planned."""
    prompt = record.planned_prompt_tokens if record.prompt_tokens is None else record.prompt_tokens
    return prompt + (record.planned_output_tokens if record.output_tokens is None else record.output_tokens)
