"""What prompts share, seen in their bodies."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.api.body import peek
from serve_app.api.prompt_prefix import BLOCK_BYTES, MOST_BLOCKS, PromptPrefix, prompt_prefix

SYSTEM = {"role": "system", "content": "You are terse. " * 60}


def prefix(body: dict[str, Any], **layout: Any) -> PromptPrefix:
    found = prompt_prefix(peek(json.dumps(body, **layout).encode()))
    assert found is not None
    return found


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def shared_blocks(one: PromptPrefix, other: PromptPrefix) -> int:
    return len(set(one.blocks) & set(other.blocks))


@pytest.mark.parametrize("layout", [{}, {"separators": (",", ":")}, {"indent": 2}])
def test_next_turn_has_the_blocks_and_end_before(layout: dict[str, Any]) -> None:
    first = [SYSTEM, user("What is a tide? " * 50)]
    answer = assistant("The sea, rising. " * 20)
    one = prefix({"messages": first}, **layout)
    two = prefix({"messages": [*first, answer, user("Why?")]}, **layout)

    assert two.blocks[: len(one.blocks)] == one.blocks
    ((_, answered),) = [turn for turn in two.turns if turn[0] == one.end]
    # All but the last message, and what is between.
    assert two.size - 100 < answered < two.size


def test_a_turn_is_found_behind_the_results_of_tools() -> None:
    asked = [user("Weather?")]
    calls = [assistant(""), {"role": "tool", "content": "rain"}, {"role": "tool", "content": "wind"}]

    ended = prefix({"messages": asked}).end
    assert ended in [end for end, _ in prefix({"messages": [*asked, *calls, user("So?")]}).turns]


def test_only_fields_of_the_prompt_change_its_hashes() -> None:
    messages = {"messages": [SYSTEM, user("Hello")]}
    plain = prefix({"model": "tide", "seed": 1, **messages})

    assert prefix({"max_tokens": 9, "stream": True, **messages}) == plain
    for name, value in (
        ("cache_salt", "tenant-a"),
        ("tools", [{"type": "function"}]),
        ("chat_template", "{{ messages }}"),
        ("chat_template_kwargs", {"enable_thinking": False}),
        ("truncate_prompt_tokens", 5),
    ):
        other = prefix({**messages, name: value})
        assert shared_blocks(plain, other) == 0
        assert other.end != plain.end
    salted, otherwise = (prefix({**messages, "cache_salt": salt}) for salt in ("a", "b"))
    assert shared_blocks(salted, otherwise) == 0


def test_key_salt_changes_all_hashes_and_no_size() -> None:
    fields = peek(json.dumps({"messages": [SYSTEM, user("Hello")], "cache_salt": "own"}).encode())
    found = [prompt_prefix(fields, salt) for salt in ("", "key-a", "key-b", "key-a")]

    plain, one, other, again = (prefix for prefix in found if prefix is not None)
    assert one == again
    assert {len(each.blocks) for each in (plain, one, other)} == {len(plain.blocks)}
    assert {each.size for each in (plain, one, other)} == {plain.size}
    hashes = [{each.end, *each.blocks, *dict(each.turns)} for each in (plain, one, other)]
    assert len(set().union(*hashes)) == sum(map(len, hashes))


def test_tools_are_the_beginning_of_a_prompt() -> None:
    tools = [{"type": "function", "function": {"name": "tide", "description": "x" * 2000}}]
    one, two = (prefix({"tools": tools, "messages": [user(text)]}) for text in ("Now?", "Tomorrow?"))

    assert shared_blocks(one, two) == len(one.blocks) >= 3
    assert one.size > 2000


def test_with_prompt_logprobs_the_cache_is_left_aside() -> None:
    body = {"messages": [user("Hi")]}

    assert prompt_prefix(peek(json.dumps({**body, "prompt_logprobs": 1}).encode())) is None
    assert prefix({**body, "prompt_logprobs": None}) == prefix(body)


def test_a_text_and_token_ids_are_prompts_too() -> None:
    text = "Once upon a time. " * 100
    one, two = prefix({"prompt": text}), prefix({"prompt": text + "There was a sea."})
    assert two.blocks[: len(one.blocks)] == one.blocks

    ids = list(range(400))
    assert prefix({"prompt": [*ids, 7]}).blocks[0] == prefix({"prompt": ids}).blocks[0]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"prompt": ["one", "two"]},
        {"prompt": [[1, 2], [3]]},
        {"prompt": ""},
        {"prompt": 7},
        {"messages": []},
        {"messages": "no list"},
        {"messages": None},
    ],
)
def test_what_is_no_single_prompt_is_left_out_or_harmless(body: dict[str, Any]) -> None:
    found = prompt_prefix(peek(json.dumps(body).encode()))

    assert found is None or not found.blocks


def test_prompt_beyond_the_blocks_has_no_end() -> None:
    long = prefix({"prompt": "x" * (MOST_BLOCKS + 2) * BLOCK_BYTES})

    assert (len(long.blocks), long.end, long.turns) == (MOST_BLOCKS, 0, ())
    whole = prefix({"prompt": "x" * MOST_BLOCKS * BLOCK_BYTES})
    assert (len(whole.blocks), whole.end != 0) == (MOST_BLOCKS, True)


def test_input_of_responses_is_a_conversation_or_one_text() -> None:
    first = [user("What is a tide? " * 50)]
    one = prefix({"instructions": SYSTEM["content"], "input": first})
    two = prefix({"instructions": SYSTEM["content"], "input": [*first, assistant("Sea."), user("And?")]})
    text = prefix({"input": "What is a tide? " * 50})

    assert one.end in [end for end, _ in two.turns]
    assert shared_blocks(one, two) == len(one.blocks) > 0
    assert shared_blocks(one, prefix({"instructions": "Other.", "input": first})) == 0
    assert text.end
    assert not text.turns


# Several blocks, and cheap to draw.
texts = st.builds(str.__mul__, st.text(max_size=20), st.integers(0, 60))
history = st.lists(st.tuples(st.sampled_from(("user", "assistant", "tool")), texts), min_size=1, max_size=7)


@given(history=history, more=st.lists(texts, min_size=1, max_size=3))
def test_longer_history_begins_with_the_shorter_one(history: list[tuple[str, str]], more: list[str]) -> None:
    messages = [{"role": role, "content": text} for role, text in history]
    one = prefix({"messages": messages})
    two = prefix({"messages": [*messages, *map(user, more)]})

    assert two.blocks[: len(one.blocks)] == one.blocks
    assert one.end in [end for end, _ in two.turns]
    assert all(0 < answered <= two.size for _, answered in two.turns)


def marked(message: dict[str, Any], **mark: str) -> dict[str, Any]:
    block = {"type": "text", "text": message["content"], "cache_control": {"type": "ephemeral", **mark}}
    return {**message, "content": [block]}


def bare(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


def claude_code(number: int, *messages: dict[str, Any]) -> PromptPrefix:
    """The prompt of a turn: each begins with another billing header, and marks its last message."""
    billing = {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; cch={number};"}
    system = [billing, marked(SYSTEM, ttl="1h")["content"][0]]
    return prefix({"system": system, "messages": list(messages)}, separators=(",", ":"))


def test_turns_of_an_agent_share_all_but_their_marks() -> None:
    first, answer, more = user("What is a tide? " * 50), bare(assistant("The sea. " * 20)), user("Why?")
    one = claude_code(1, marked(first))
    two = claude_code(2, bare(first), answer, marked(more))

    assert two.blocks[: len(one.blocks)] == one.blocks
    assert one.end in dict(two.turns)


def test_another_system_prompt_is_another_prefix() -> None:
    messages = [user("Hello " * 200)]
    one, two = (prefix({"system": system, "messages": messages}) for system in ("Be brief.", "Be long."))

    assert shared_blocks(one, two) == 0
