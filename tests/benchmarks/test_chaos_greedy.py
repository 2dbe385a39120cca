"""What is heard of a greedy stream, and when two streams say the same."""

import json
from dataclasses import replace

from benchmarks.chaos.greedy import Heard, Listener, body, differences
from benchmarks.chaos.greedy_load import GreedyChat
from benchmarks.chaos.load import Job, Received

USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}


def event(delta: dict[str, str] | None, finish: str | None = None, **more: object) -> bytes:
    choices = [] if delta is None else [{"delta": delta, "finish_reason": finish, **more}]
    usage = {"usage": USAGE, "latency": {"moves": 1}} if delta is None else {}
    return (
        b"data: " + json.dumps({"id": "c-1", "created": 17, "choices": choices, **usage}).encode() + b"\n\n"
    )


STREAM = [
    event({"role": "assistant", "content": ""}),
    event({"content": "Wœ"}, logprobs={"content": [{"token": "Wœ", "logprob": -0.25}]}),
    b": continued on another replica after 0.31 s\n\n",
    event({"content": ""}, logprobs={"content": [{"token": "\ufffd", "logprob": -0.5}]}),
    event({"content": "lf"}, "length", logprobs={"content": [{"token": "lf", "logprob": -1.0}]}),
    event(None),
    b"data: [DONE]\n\n",
]


def listened(frames: list[bytes] = STREAM) -> Listener:
    """Frame n comes at n seconds."""
    listener = Listener()
    for at, frame in enumerate(frames):
        listener.feed(frame, float(at))
    return listener


def test_a_stream_is_heard_word_by_word_with_the_pause_of_its_move() -> None:
    heard = listened()
    assert (heard.text, heard.finish_reasons, heard.usage) == ("Wœlf", ["length"], USAGE)
    assert heard.logprobs == [("Wœ", -0.25), ("\ufffd", -0.5), ("lf", -1.0)]
    assert (heard.answers, heard.roles, heard.error) == (1, 1, "")
    assert (heard.pieces, heard.moves) == ([1.0, 3.0, 4.0], [(1.0, 3.0)])


def test_however_the_bytes_are_cut_the_same_is_heard() -> None:
    listener = Listener()
    for byte in b"".join(STREAM):
        listener.feed(bytes([byte]), 0.0)
    assert (listener.text, len(listener.logprobs), len(listener.moves)) == ("Wœlf", 3, 1)


def test_an_error_event_is_heard() -> None:
    error = b'event: error\ndata: {"error":{"message":"gone","code":"replica_lost"}}\n\n'
    assert listened([*STREAM[:2], error]).error == "replica_lost: gone"


def heard() -> Heard:
    chat = GreedyChat(Job("", {}, "tide", 1, 3), "moon")
    for at, frame in enumerate(STREAM):
        chat.feed(frame, float(at))
    received = Received(
        0.0, 6.0, 3, 200, chat.pieces, done=True, error_event=chat.error, output_tokens=chat.output_tokens
    )
    outcome, told = chat.record(received)
    assert outcome == "continued"  # its pause took two seconds
    return Heard(**json.loads(json.dumps(told))["heard"])


def test_what_a_load_tells_of_a_stream_is_the_whole_of_it() -> None:
    one = heard()
    assert (one.subject, one.text, one.whole, one.answers) == ("moon", "Wœlf", True, 1)
    assert differences(one, heard()) == []


def test_a_stream_differs_in_a_word_a_count_or_a_mixed_up_answer() -> None:
    one = heard()
    assert differences(replace(one, text="Wolf"), one) == ["text"]
    assert differences(replace(one, usage={**USAGE, "completion_tokens": 4}), one) == ["usage"]
    assert differences(replace(one, answers=2, roles=2), one) == ["answers", "roles"]
    assert differences(replace(one, finish_reasons=["stop"]), one) == ["finish_reasons"]


def test_log_probabilities_may_be_rounded_otherwise_and_no_more() -> None:
    one = heard()
    (token, figure), *rest = one.logprobs
    assert differences(replace(one, logprobs=[(token, figure - 0.05), *rest]), one) == []
    assert differences(replace(one, logprobs=[(token, figure - 0.2), *rest]), one) == ["logprobs"]
    assert differences(replace(one, logprobs=rest), one) == ["logprobs"]


def test_every_second_subject_is_asked_for_log_probabilities() -> None:
    assert [body("tide", subject, 600)["logprobs"] for subject in ("sea", "moon", "rain")] == [
        False,
        True,
        False,
    ]
