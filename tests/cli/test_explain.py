import argparse
import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from serve_app.cli.explain import _follow
from serve_app.cli.explain_layout import DecisionsDocument
from serve_app.cli.main import main
from tests.cli.test_explain_layout import record as decided
from tests.cli.test_explain_layout import state_of, status
from tests.http_server import Answer, serving


def record(seq: int, at: float = 1000.0, **given: Any) -> dict[str, Any]:
    return decided(at + seq, seq - 1, seq, seq=seq, reason=f"reason {seq}", **given)


def body(*records: dict[str, Any]) -> dict[str, Any]:
    return {"autoscaler": None, "decisions": list(records)}


class Endpoint:
    """Answers with one document after the other, the last one for ever."""

    def __init__(self, *answers: Answer, ready: Answer = (404, b"")) -> None:
        self.answers = list(answers)
        self.ready = ready
        self.queries: list[dict[str, list[str]]] = []

    def __call__(self, method: str, path: str, content: bytes) -> Answer:
        if urlsplit(path).path.endswith("/ready"):
            return self.ready
        assert urlsplit(path).path.endswith("/autoscaling/decisions")
        self.queries.append(parse_qs(urlsplit(path).query))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def test_explain_prints_words_and_sends_the_key(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-tide")
    endpoint = Endpoint((200, body(record(2))))
    keys: list[str | None] = []
    with serving(endpoint, keys) as url:
        assert main(["explain", "--url", url]) == 0

    out = capsys.readouterr().out
    assert "the target goes from 1 to 2 replicas, because of queue." in out
    assert "\x1b[" not in out
    assert endpoint.queries == [{"limit": ["200"]}]
    assert keys == ["Bearer sk-tide"] * 2  # of the decisions and of /ready


FAILED = "the last rollout failed: Deploying app 'shop' failed: ValueError: port (traceback: controller.log)"


@pytest.mark.parametrize("state", [{}, {"pending": 1, "pending_s": 20}], ids=["up", "pending"])
def test_explain_gives_the_reason_of_ready(state: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    document = body(record(2)) | {"autoscaler": status(**{"Engine-tiny": state_of(**state)})}
    ready = {"models": {"tiny": {"state": "up", "reason": FAILED}}}
    with serving(Endpoint((200, document), ready=(503, ready))) as url:
        assert main(["explain", "--url", url]) == 0

    assert FAILED in " ".join(capsys.readouterr().out.split())


def test_explain_calls_no_failed_replica_pending(capsys: pytest.CaptureFixture[str]) -> None:
    pending = state_of(pending=2, pending_s=20, reason="the last start failed in imports: no such folder")
    document = body(record(2)) | {"autoscaler": status(**{"Engine-tiny": pending})}
    ready = {"models": {"tiny": {"state": "failed", "reason": FAILED}}}
    with serving(Endpoint((200, document), ready=(503, ready))) as url:
        assert main(["explain", "--url", url]) == 0

    assert f"2 replicas have failed to start. Reason: {FAILED}" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("ready", [(200, b"[]"), (200, {"models": {"tiny": None}}), (500, b"\xff")])
def test_explain_does_without_ready(ready: Answer, capsys: pytest.CaptureFixture[str]) -> None:
    document = body(record(2)) | {"autoscaler": status(**{"Engine-tiny": state_of()})}
    with serving(Endpoint((200, document), ready=ready)) as url:
        assert main(["explain", "--url", url]) == 0

    assert "because of queue" in capsys.readouterr().out


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["in words", "as JSON"])
def test_rejected_knobs_are_an_exit_status(
    options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """A script that has deployed knobs must not go on as if they were in force."""
    document = body(record(2)) | {
        "knobs_rejected": "autoscaling['tiny'].max_replicas = 0: must be at least 1"
    }
    with serving(Endpoint((200, document))) as url:
        assert main(["explain", "--url", url, *options]) == 1

    assert "must be at least 1" in capsys.readouterr().out


def test_model_and_limit_are_sent_under_route_prefix(capsys: pytest.CaptureFixture[str]) -> None:
    endpoint = Endpoint((200, body()))
    with serving(endpoint) as url:
        assert main(["explain", "--url", f"{url}/tide/", "--model", "a/b 7", "--limit", "5"]) == 0

    assert endpoint.queries == [{"model": ["a/b 7"], "limit": ["5"]}]
    assert "No policy has reported yet." in capsys.readouterr().out


def test_json_is_what_the_server_answered(capsys: pytest.CaptureFixture[str]) -> None:
    document = body(record(1, weather="fine"))
    with serving(Endpoint((200, document))) as url:
        assert main(["explain", "--url", url, "--json"]) == 0

    assert json.loads(capsys.readouterr().out) == document


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (
            (404, {"error": {"message": "the model 'x' does not exist", "type": "not_found"}}),
            "{url} answers 404 Not Found: not_found: the model 'x' does not exist\n",
        ),
        (
            (503, b"no application\n" * 2),
            "{url} answers 503 Service Unavailable: no application no application\n",
        ),
        ((200, b"<html>"), "{url} answers, but not as Tideserve does: give --url of its API\n"),
        ((200, b"[" * 100_000), "{url} answers, but not as Tideserve does: give --url of its API\n"),
        (
            (200, {"autoscaler": None}),
            "the answer is not one of this version of Tideserve: decisions: required, and not given\n",
        ),
    ],
)
def test_an_answer_that_is_no_explanation_is_an_error(
    answer: Answer, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(Endpoint(answer)) as url:
        assert main(["explain", "--url", url]) == 1

    assert capsys.readouterr().err == "tideserve: " + told.format(url=url)


@pytest.mark.parametrize(
    ("argv", "message"),
    [(["--url", "localhost:8000"], "must be an http(s) URL"), (["--limit", "0"], "must be at least 1")],
)
def test_options_that_make_no_sense_are_told(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *argv]) == 1

    assert message in capsys.readouterr().err


class EnoughError(Exception):
    pass


def follow(url: str, seen: dict[str, Any], polls: int, as_json: bool = False) -> None:
    """Follow for so many polls."""
    left = iter(range(polls))

    def sleep(seconds: float) -> None:
        assert seconds == 1.0
        if next(left, None) is None:
            raise EnoughError

    options = argparse.Namespace(url=url, model=None, limit=2, json=as_json)
    with pytest.raises(EnoughError):
        _follow(options, DecisionsDocument.model_validate(seen), sleep)


def test_following_prints_each_new_record_once(capsys: pytest.CaptureFixture[str]) -> None:
    endpoint = Endpoint(
        (200, body(record(1), record(2), record(3))),
        (200, body(record(1), record(2), record(3), record(4), record(5))),
        (200, body(record(4), record(5))),
    )
    with serving(endpoint) as url:
        follow(url, body(record(2), record(3)), polls=4)

    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == f"Following {url}. Ctrl-C ends the command."
    assert [line.partition("  tiny  ")[2] for line in lines[2:]] == [
        "3 -> 4    queue         reason 4",
        "4 -> 5    queue         reason 5",
    ]


def test_following_as_json_prints_a_record_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Endpoint((200, body(record(1), record(2))))) as url:
        follow(url, body(record(1)), polls=1, as_json=True)

    assert [json.loads(line)["seq"] for line in capsys.readouterr().out.splitlines()] == [2]


def test_following_outlasts_a_server_that_is_away(capsys: pytest.CaptureFixture[str]) -> None:
    endpoint = Endpoint((503, b"restarting"), (503, b"restarting"), (200, body(record(1), record(2))))
    with serving(endpoint) as url:
        follow(url, body(record(1)), polls=3)

    out, err = capsys.readouterr()
    assert err.splitlines() == [
        f"tideserve: {url} answers 503 Service Unavailable: restarting",
        f"tideserve: {url} answers again",
    ]
    assert "reason 2" in out


def test_ctrl_c_ends_following_in_peace(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("serve_app.cli.explain._follow", interrupt)
    with serving(Endpoint((200, body()))) as url:
        assert main(["explain", "--url", url, "--follow"]) == 0


def test_numbers_that_start_anew_are_new_records(capsys: pytest.CaptureFixture[str]) -> None:
    """A policy that has lost what it kept counts from 1 again."""
    with serving(Endpoint((200, body(record(1, at=2000.0))))) as url:
        follow(url, body(record(1), record(2)), polls=2, as_json=True)

    assert [json.loads(line)["at"] for line in capsys.readouterr().out.splitlines()] == [2001.0]
