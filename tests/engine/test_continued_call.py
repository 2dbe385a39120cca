"""Streams cut anywhere and continued: a real engine says the same as undisturbed, to the token."""

import asyncio
import json
from functools import partial
from typing import Any

import pytest

from serve_app.api.engine_client import Operation
from serve_app.api.errors import ApiError
from serve_app.engine.chat_operations import Serving
from serve_app.engine.continuing_core import DELIVERED
from serve_app.engine.local_client import LocalEngine
from serve_app.settings.tree import ModelSettings
from serve_app.wire.data_plane import Continuation
from tests.engine.local import FakeLog
from tests.engine.streams import (
    OSLO,
    Heard,
    asked,
    at_each,
    chat,
    continued,
    differences,
    events,
    hear,
    said,
    strict,
)
from tests.engine.stub_engine_core import StubEngineCore

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a place",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


TOKENS = 60
STORY = chat("Write a story about the sea.", max_tokens=TOKENS, ignore_eos=True)
LOGPROBS = chat(
    "Write a story about a fox.", max_tokens=TOKENS, ignore_eos=True, logprobs=True, top_logprobs=3
)
TOOLS = chat("What is the weather in Oslo?", max_tokens=120, tools=[WEATHER])
TEXT: tuple[Operation, dict[str, Any]] = (
    "completions",
    {"prompt": "The sea", "max_tokens": TOKENS, "ignore_eos": True},
)
SCORED: tuple[Operation, dict[str, Any]] = (
    "completions",
    {"prompt": "The moon", "max_tokens": 60, "logprobs": 2},
)
GENERATE: tuple[Operation, dict[str, Any]] = (
    "generate",
    {"prompt": "Once upon a time", "max_tokens": TOKENS},
)
STREAMS = pytest.mark.parametrize(
    ("operation", "body"),
    [STORY, LOGPROBS, TOOLS, TEXT, SCORED, GENERATE],
    ids=["chat", "logprobs", "tools", "text", "scored", "generate"],
)
SUM = 'root ::= term (" + " term){3,5}\nterm ::= [0-9]{1,3} | "(" root ")"'
"""Brackets in brackets: where the grammar stands follows from all that came before."""
NAMED = {"type": "function", "function": {"name": "get_weather"}}
IDENTITY = "0123456789abcdef0123456789abcdef"
VOCABULARY = 2048
UNTIED = {str(token): token * 1e-5 for token in range(VOCABULARY)}
LIKELIEST = {"temperature": 1, "top_k": 1, "logit_bias": UNTIED}
"""Greedy, which vLLM refuses for several sequences. In bfloat16, two tokens are often equally likely."""


def seaside(**fields: Any) -> tuple[Operation, dict[str, Any]]:
    return chat("Write a story about the sea.", **{"max_tokens": 50, "ignore_eos": True, **fields})


def structured(grammar: dict[str, Any], **fields: Any) -> tuple[Operation, dict[str, Any]]:
    return chat("Tell me of Oslo.", max_tokens=70, structured_outputs=grammar, **fields)


async def test_stream_sent_at_once_has_the_same_tokens(engine: LocalEngine) -> None:
    whole = await hear(engine, asked(*STORY))
    request, again, sent_now = asked(*STORY), Heard(), []

    def write_now(data: bytes) -> bool:
        if data:
            again.chunks.append(data)
            sent_now.append(data)
        return True

    async with engine.call(request) as reply:
        assert reply.stream is not None
        assert reply.delivered is not None
        async for chunk in reply.stream:
            again.chunks.append(chunk)
            request.write_now = write_now
        again.outputs = reply.delivered.take()

    assert differences(whole, again).keys() <= {"created"}  # the second stream may be of the next second
    assert len(sent_now) > 30


@STREAMS
async def test_a_continued_stream_says_what_an_undisturbed_one_does(
    engine: LocalEngine, operation: Operation, body: dict[str, Any]
) -> None:
    whole = await hear(engine, asked(operation, body))
    cuts = whole.cuts()

    chosen = {*cuts[:2], *cuts[:: 1 + len(cuts) // 6], *cuts[-2:]}
    rest_after = partial(continued, engine, operation, body, whole)
    for cut, again in await at_each(chosen, rest_after):
        assert differences(whole, again) == {}, cut


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        chat("Say hello in Japanese.", max_tokens=40, ignore_eos=True),  # characters of several tokens
        chat("Write a story about the sea.", max_tokens=220, stop=["in a castle"]),
        chat(
            "Write a story about the sea.",
            max_tokens=220,
            stop=["the sea and"],
            include_stop_str_in_output=True,
        ),
        chat("Hello!", max_tokens=60, min_tokens=40),  # its end would come before
        chat("Hello!", max_tokens=60),  # ends by itself
        ("completions", {"prompt": "The sea", "max_tokens": 40, "echo": True, "return_token_ids": True}),
        chat("Tell me about rain.", max_tokens=40, repetition_penalty=1.3, logit_bias={"300": -5}),
        seaside(presence_penalty=1.2),
        seaside(frequency_penalty=0.8, logprobs=True),
        seaside(presence_penalty=-0.5, frequency_penalty=0.6, repetition_penalty=1.1),
        seaside(max_tokens=30, bad_words=["the sea", "a castle", "was a", "little", "there was"]),
        seaside(repetition_detection={"max_pattern_size": 8, "min_count": 2}),
        ("completions", {"prompt": "The sea", "max_tokens": 60, "ignore_eos": True, "presence_penalty": 1}),
    ],
    ids=[
        "bytes",
        "stop",
        "stop shown",
        "not before",
        "end",
        "echo",
        "penalty",
        "presence",
        "frequency",
        "all penalties",
        "bad words",
        "repetition",
        "presence in text",
    ],
)
async def test_nothing_is_lost_or_doubled_wherever_the_seam_is(
    engine: LocalEngine, operation: Operation, body: dict[str, Any]
) -> None:
    whole = await hear(engine, asked(operation, body))

    rest_after = partial(continued, engine, operation, body, whole)
    for cut, again in await at_each(whole.cuts()[-10:], rest_after):
        assert differences(whole, again) == {}, cut


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        chat("Describe Oslo.", max_tokens=120, response_format=strict(OSLO)),
        chat("Describe Oslo.", max_tokens=120, response_format=strict(OSLO), presence_penalty=0.7),
        structured({"regex": r"([a-z]{3,8} ){4}\d{3}-\d{4}"}),
        structured({"choice": ["the sea is wide and blue", "the forest is deep and green"]}),
        structured({"grammar": SUM}),
        chat("What is the weather in Oslo?", max_tokens=120, tools=[WEATHER], tool_choice="required"),
        chat("The weather in Oslo?", max_tokens=60, tools=[WEATHER], tool_choice=NAMED),
        (
            "completions",
            {"prompt": "The sea", "max_tokens": 60, "structured_outputs": {"regex": "( [a-z]{2,6}){9}"}},
        ),
    ],
    ids=["json", "json with penalty", "regex", "choice", "grammar", "any tool", "one tool", "text"],
)
async def test_a_grammar_stands_where_the_delivered_tokens_have_brought_it(
    engine: LocalEngine, operation: Operation, body: dict[str, Any]
) -> None:
    whole = await hear(engine, asked(operation, body))
    cuts = whole.cuts()

    assert said(whole.chunks)["finish"][0][0] in ("stop", "tool_calls")
    chosen = {*cuts[:2], *cuts[:: 1 + len(cuts) // 7], *cuts[-2:]}
    rest_after = partial(continued, engine, operation, body, whole)
    for cut, again in await at_each(chosen, rest_after):
        assert differences(whole, again) == {}, cut


async def test_tokens_refused_by_grammar_end_only_their_stream(engine: LocalEngine) -> None:
    operation, body = structured({"choice": ["yes", "no"]})
    with pytest.raises(ApiError) as refused:
        await hear(engine, asked(operation, body, Continuation(([300, 301],), created=7, ttft_s=0.1)))

    assert refused.value.param == "structured_outputs"
    assert said((await hear(engine, asked(operation, body))).chunks)["text"] in ("yes", "no")


@pytest.mark.parametrize("count", [3, 10**6, "3", [3]])
async def test_a_client_cannot_tell_the_core_what_has_been_delivered(engine: LocalEngine, count: Any) -> None:
    texts = []
    for extra in ({}, {"vllm_xargs": {DELIVERED: count}}):
        async with engine.call(asked(*chat("Hi", max_tokens=5, ignore_eos=True, **extra))) as reply:
            assert reply.stream is not None
            texts.append(said([chunk async for chunk in reply.stream])["text"])

    assert texts[0] == texts[1] != ""


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        chat("Tell me about rain.", max_tokens=70, ignore_eos=True, n=2, **LIKELIEST),
        chat("Tell me about rain.", max_tokens=70, n=3, frequency_penalty=0.8, logprobs=True, **LIKELIEST),
        structured({"regex": "([a-z]{3,8} ){4}"}, n=2, **LIKELIEST),
        ("completions", {"prompt": "The sea", "max_tokens": 12, "echo": True, "n": 2, **LIKELIEST}),
    ],
    ids=["chat", "penalty", "regex", "text"],
)
async def test_each_of_several_sequences_goes_on_from_its_own_tokens(
    engine: LocalEngine, operation: Operation, body: dict[str, Any]
) -> None:
    whole = await hear(engine, asked(operation, body))
    cuts = whole.cuts()

    chosen = {*cuts[:2], *cuts[:: 1 + len(cuts) // 6], *cuts[-2:]}
    rest_after = partial(continued, engine, operation, body, whole)
    for cut, again in await at_each(chosen, rest_after):
        for index in range(body["n"]):
            assert differences(whole, again, index) == {}, (cut, index)


async def test_logprobs_after_a_move_match_an_undisturbed_run(engine: LocalEngine) -> None:
    whole = await hear(engine, asked(*LOGPROBS))
    cuts = whole.cuts()
    again = await continued(engine, *LOGPROBS, whole, cuts[len(cuts) // 2])

    before, after = (dict(enumerate(said(heard.chunks)["logprobs"])) for heard in (whole, again))
    assert len(before) == TOKENS
    # Prefilled together, the delivered tokens are rounded otherwise to bfloat16 than one by one. Of 120 seams
    # 86 were equal to the last bit, and none differed by more than 0.04.
    for index, (token, figure) in before.items():
        assert after[index] == (token, pytest.approx(figure, abs=0.1))


@pytest.mark.parametrize(("operation", "body"), [STORY, LOGPROBS, TEXT])
async def test_the_events_keep_the_answers_date(
    engine: LocalEngine, operation: Operation, body: dict[str, Any]
) -> None:
    rest = await hear(engine, asked(operation, body, Continuation(([300],), created=7, ttft_s=0.1)))
    first = await hear(engine, asked(operation, body, Continuation((), created=7, ttft_s=0.1)))

    assert said(rest.chunks)["created"] == said(first.chunks)["created"] == {7}
    assert said(rest.chunks)["roles"] == 0


@STREAMS
async def test_tokens_are_told_when_their_events_have_been_handed_on(
    engine: LocalEngine, operation: Operation, body: dict[str, Any]
) -> None:
    more = {} if operation == "generate" else {"return_token_ids": True}
    heard = await hear(engine, asked(operation, {**body, **more}))

    sent: list[int] = []
    for chunk, told in zip(heard.chunks, heard.told_before, strict=True):
        assert heard.tokens[:told] == sent
        for frame in chunk.split(b"\n\n"):
            document = json.loads(frame.removeprefix(b"data: ")) if frame.startswith(b"data: {") else {}
            sent += [document["token_id"]] if "token_id" in document else []
            sent += [token for one in document.get("choices", ()) for token in one.get("token_ids") or ()]
    assert heard.tokens == sent


async def test_what_others_generated_is_input_in_the_log(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = FakeLog()
    monkeypatch.setattr(engine, "request_log", log)
    whole = await hear(engine, asked(*STORY))
    cuts = whole.cuts()
    cut = cuts[len(cuts) // 2]
    await continued(engine, *STORY, whole, cut)

    before, after = log.lines
    assert (before.input_tokens, before.output_tokens) == (15, TOKENS)
    delivered = whole.told_before[cut]
    assert (after.input_tokens, after.output_tokens) == (15 + delivered, TOKENS - delivered)
    assert (after.ttft_s, after.outcome) == (0.25, "completed")


async def test_stream_left_early_frees_its_sequence(engine: LocalEngine) -> None:
    states = engine._engine.output_processor.request_states

    async with engine.call(asked(*STORY, Continuation(([300, 301],), created=7, ttft_s=0.1))) as reply:
        assert reply.stream is not None
        await anext(reply.stream)
        assert len(states) == 1

    while states:
        await asyncio.sleep(0)
    assert reply.delivered is not None
    assert reply.delivered.take() == []


# Without a model: refusals, and failures before the first event.


@pytest.fixture
def stub(serving: Serving) -> LocalEngine:
    return LocalEngine(serving, ModelSettings(name="tide"), lambda _: None, model_identity=IDENTITY)


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        chat("Hi", max_tokens=2, vllm_xargs={"mine": 1}),
        ("completions", {"prompt": ["a", "b"], "max_tokens": 2}),
    ],
)
async def test_stream_that_cannot_be_continued_is_refused(
    stub: LocalEngine, operation: Operation, body: dict[str, Any]
) -> None:
    async with stub.call(asked(operation, body)) as reply:
        assert reply.delivered is None
        assert reply.stream is not None
        assert [chunk async for chunk in reply.stream][-1].endswith(b"data: [DONE]\n\n")

    with pytest.raises(ApiError) as refused:
        await hear(stub, asked(operation, body, Continuation(([300],), created=7, ttft_s=0.1)))
    assert (refused.value.status, refused.value.code) == (409, "not_continuable")


@pytest.mark.parametrize(
    "begun",
    [
        Continuation(([300],), 7, ttft_s=0.1, model_identity="another model"),
        Continuation(([300, VOCABULARY],), 7, ttft_s=0.1, model_identity=IDENTITY),
        Continuation(([], [300, -1]), 7, ttft_s=0.1, model_identity=IDENTITY),
    ],
    ids=["another model", "beyond the vocabulary", "negative"],
)
async def test_tokens_of_another_model_are_refused(stub: LocalEngine, begun: Continuation) -> None:
    with pytest.raises(ApiError) as refused:
        await hear(stub, asked(*chat("Hi", max_tokens=9), begun))
    assert (refused.value.status, refused.value.code) == (409, "not_continuable")

    own = Continuation(([300, VOCABULARY - 1],), 7, ttft_s=0.1, model_identity=IDENTITY)
    assert (await hear(stub, asked(*chat("Hi", max_tokens=9), own))).tokens


@pytest.mark.parametrize(
    ("operation", "body"),
    [chat("Hi", max_tokens=2), ("generate", {"prompt": "a"}), ("tokenize", {"prompt": "a"})],
)
async def test_only_a_stream_is_continued(
    stub: LocalEngine, operation: Operation, body: dict[str, Any]
) -> None:
    whole = {**body, "stream": False} | ({} if operation == "generate" else {"stream_options": None})
    with pytest.raises(ApiError) as refused:
        await hear(
            stub, asked(operation, whole, Continuation(([300],), 7, ttft_s=0.1, model_identity=IDENTITY))
        )
    assert (refused.value.status, refused.value.code) == (409, "not_continuable")


@pytest.mark.parametrize("delivered", [3, 4])
async def test_complete_delivered_tokens_leave_only_the_usage_frame(
    stub: LocalEngine, delivered: int
) -> None:
    operation, body = chat("Hi", max_tokens=3)
    rest = await hear(
        stub,
        asked(operation, body, Continuation(([300] * delivered,), 7, ttft_s=0.1, model_identity=IDENTITY)),
    )

    (usage,) = events(rest.chunks)
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], delivered)
    assert rest.tokens == []


async def test_failure_before_first_new_token_is_not_dropped(
    stub: LocalEngine, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    core: StubEngineCore = serving.engine.engine_core  # type: ignore[assignment]
    monkeypatch.setattr(core, "most_steps", 0)
    operation, body = chat("Hi", max_tokens=9)
    opening = asyncio.ensure_future(
        hear(stub, asked(operation, body, Continuation(([300],), 7, ttft_s=0.1, model_identity=IDENTITY)))
    )
    while not serving.engine.output_processor.request_states:
        await asyncio.sleep(0)

    serving.engine.output_processor.propagate_error(RuntimeError("gone wrong"))

    with pytest.raises(ApiError) as failure:
        await opening
    assert failure.value.status == 500
