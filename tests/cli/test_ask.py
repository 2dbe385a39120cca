"""`tideserve ask` against a real server that speaks server-sent events."""

import asyncio
import json
import os
import signal
from io import StringIO
from threading import Thread
from typing import Any

import pytest

from serve_app import env
from serve_app.cli import CommandError
from serve_app.cli.ask import PROMPT, Question
from serve_app.cli.ask_display import Display
from serve_app.cli.main import main
from tests.cli.sse_server import DONE, LIMIT_S, Refusal, Tide, chat, event, failed, held, last, serving

CHAT, COMPLETIONS, MODELS = "/v1/chat/completions", "/v1/completions", "/v1/models"
OPENING = chat("", role="assistant")
LATENCY = {"cold_wait_ms": 9200.0, "ttft_ms": 9210.0, "inter_token_ms": 2.5, "tokens_per_second": 0.2}
WHOLE = (OPENING, chat("Once"), chat(" upon"), last(2, **LATENCY), DONE)


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(env.API_KEY, raising=False)


def ask(tide: Tide, *options: str) -> int:
    with serving(tide) as url:
        return main(["ask", "--url", url, *options])


def failure(tide: Tide, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert ask(tide, *options) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("tideserve: ")
    return line.removeprefix("tideserve: ")


def error(message: str, code: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}


def test_the_answer_is_printed_and_its_figures_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    tide = Tide(WHOLE)

    assert ask(tide) == 0

    printed = capsys.readouterr()
    assert printed.out == "Once upon\n"
    assert printed.err == (
        "asking tide\ntide: 2 tokens, TTFT 9.21 s, cold wait 9.2 s, ITL 2.5 ms, 0.2 tokens/s\n"
    )
    [(path, body)] = tide.asked
    assert path == CHAT
    assert body == {
        "model": "tide",
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": 128,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_what_is_asked_of_which_model_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    tide = Tide(WHOLE, models=None)

    assert ask(tide, "Who?", "--model", "other", "--max-tokens", "3") == 0

    body = tide.asked[0][1]
    assert (body["model"], body["messages"][0]["content"], body["max_tokens"]) == ("other", "Who?", 3)
    assert "asking other\n" in capsys.readouterr().err


def test_a_cold_start_is_told_while_it_lasts(capsys: pytest.CaptureFixture[str]) -> None:
    waits = (held("imports", "unknown", 5), held("imports", "unknown", 10), held("warm_up", "2", 15))

    assert ask(Tide((*waits, *WHOLE))) == 0

    assert capsys.readouterr().err.splitlines()[1:3] == [
        "waiting for a replica: imports, 5 s so far",
        "waiting for a replica: warm_up, about 2 s to go, 15 s so far",
    ]


TRACE = (
    b': trace {"trace_id":"0af7","seconds":2.0,"spans":'
    b'[{"name":"queue","start":0.0,"end":1.0,"attributes":{},"events":[]}]}\n\n'
)


def test_a_trace_that_is_asked_for_is_drawn_after_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(Tide((*WHOLE, TRACE)), "--trace") == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[-2:] == ["trace 0af7, 2 s", f"queue      1 s |{'=' * 20}{' ' * 20}|"]

    assert ask(Tide((*WHOLE, TRACE)), "--trace", "--json") == 0
    assert json.loads(capsys.readouterr().out)["trace"]["trace_id"] == "0af7"

    assert ask(Tide(WHOLE), "--trace") == 0  # another server, or an older one
    assert capsys.readouterr().err.splitlines()[-1] == "the server has sent no trace"


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(Tide(WHOLE), "--json") == 0

    document = json.loads(capsys.readouterr().out)
    assert (document["model"], document["text"], document["pieces"]) == ("tide", "Once upon", 2)
    assert document["usage"]["completion_tokens"] == 2
    assert document["latency"] == LATENCY


def test_the_key_of_the_environment_is_sent_with_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.API_KEY, "sk-tide")
    tide = Tide(WHOLE)

    assert ask(tide) == 0

    assert tide.keys == ["Bearer sk-tide"] * 2


def test_a_model_without_a_chat_template_gets_a_completion(capsys: pytest.CaptureFixture[str]) -> None:
    """As vLLM refuses: before a stream, or within one that was held."""
    words = "As of transformers v4.44, default chat template is no longer allowed, so you must provide one"
    refused = Tide(
        (event({"choices": [{"text": "Once"}]}), last(1), DONE),
        refusals={CHAT: Refusal(400, error(words, "invalid_value"))},
    )

    assert ask(refused, "Once") == 0

    [(path, body)] = refused.asked
    assert (path, body["prompt"], body.get("messages")) == (COMPLETIONS, "Once", None)
    assert capsys.readouterr().out == "Once\n"
    told = failure(Tide((held("busy", "1", 5), failed(words, "invalid_value"), DONE)), capsys)
    assert told.startswith("the stream ended in an error: invalid_value: As of transformers")


@pytest.mark.parametrize(
    ("tide", "told"),
    [
        (
            Tide((OPENING, chat("Once"), failed("the engine replica was lost", "replica_lost"), DONE)),
            "the stream ended in an error after 1 piece: replica_lost: the engine replica was lost",
        ),
        (
            Tide((held("imports", "3", 5), failed("600 s", "cold_wait_timeout"), DONE)),
            "the stream ended in an error: cold_wait_timeout: 600 s",
        ),
        (
            Tide((OPENING, chat("Once"))),
            "the stream was cut off: it ended without [DONE]; 1 piece of the answer had come",
        ),
        (Tide((OPENING, DONE)), "the stream ended with [DONE] and without a token"),
        (Tide((b"data: {oops}\n\n",)), "the stream has an event that is no completion: {oops}"),
        (Tide((b"{}",), content_type="application/json"), "answers with application/json, not with a stream"),
        (Tide(models={"data": []}), "/v1/models answers, but lists no model"),
        (
            Tide(refusals={MODELS: Refusal(302, {}, {"Location": "/login"})}),
            "answers 302: redirected to /login; give --url accordingly",
        ),
        (Tide(refusals={MODELS: Refusal(404, "\x1b[2Jnot here")}), 'answers 404: "\\u001b[2Jnot here"'),
        (
            Tide(refusals={MODELS: Refusal(401, error("required", "invalid_api_key"))}),
            "/v1/models answers 401: invalid_api_key: required (the key is taken from OPENAI_API_KEY)",
        ),
        (
            Tide(refusals={CHAT: Refusal(429, error("1,000 wait", "queue_full"), {"Retry-After": "30"})}),
            "answers 429: queue_full: 1,000 wait (Retry-After: 30)",
        ),
        (Tide((OPENING, chat("Once")), cut=True), "; 1 piece of the answer had come"),
    ],
)
def test_incomplete_answer_is_a_failure_in_one_sentence(
    tide: Tide, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert failure(tide, capsys).endswith(told)


async def test_timeout_covers_everything_and_reports_progress() -> None:
    async def failure_of(url: str) -> str:
        question = Question(url, {}, "tide", PROMPT, 8, 1.0, Display(None, StringIO()))
        with pytest.raises(CommandError) as error:
            await question.ask()
        return str(error.value)

    waits = Tide((held("pending_capacity", "unknown", 5),), endless=True)
    begins, silent = Tide((OPENING, chat("Once")), endless=True), Tide(endless=True)
    with serving(waits) as first, serving(begins) as second, serving(silent) as third:
        told = await asyncio.gather(failure_of(first), failure_of(second), failure_of(third))

    assert list(told) == [
        "no complete answer within 1 s: the request was waiting for a replica in phase pending_capacity",
        "no complete answer within 1 s: 1 piece of the answer had come",
        "no complete answer within 1 s: no token had come",
    ]


def test_ctrl_c_closes_the_stream(capsys: pytest.CaptureFixture[str]) -> None:
    tide = Tide((OPENING, chat("Once")), endless=True)

    def interrupt() -> None:
        assert tide.streaming.wait(LIMIT_S)
        os.kill(os.getpid(), signal.SIGINT)

    thread = Thread(target=interrupt)
    thread.start()
    assert ask(tide) == 130
    thread.join()

    assert tide.left.wait(LIMIT_S)
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--url", "ftp://tide"], "--url = 'ftp://tide': must be an http(s) URL"),
        (["--url", "http://[::1"], "--url = 'http://[::1': must be an http(s) URL"),
        (["--url", "http://me:secret@tide"], "--url: must not contain a user name or password"),
        (["--max-tokens", "0"], "--max-tokens = 0: must be at least 1"),
        (["--timeout", "0"], "--timeout = 0: must be finite and above 0 seconds"),
        (["--timeout", "nan"], "--timeout = nan: must be finite and above 0 seconds"),
        ([" "], "PROMPT = ' ': must not be blank"),
    ],
)
def test_options_that_make_no_sense_are_told(
    options: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ask", *options]) == 2

    err = capsys.readouterr().err
    assert told in err
    assert "secret" not in err


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_an_answer_that_finds_no_room_is_a_failure(
    options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        told = failure(Tide(WHOLE), capsys, *options)

    assert told == "the answer could not be written: No space left on device"


def test_a_reader_that_has_gone_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe:
        monkeypatch.setattr("sys.stdout", pipe)
        assert ask(Tide(WHOLE)) == 0


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_closed_stream_is_not_written_to(stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"sys.{stream}", None)

    assert ask(Tide(WHOLE)) == 0
