"""A client that leaves frees its sequence: streaming or not, running or queued.

The model takes one sequence at a time and every request asks for 1,900 tokens; what was not generated
shows that a request was cut, and that a later one is answered shows that its place was free.
"""

from dataclasses import dataclass
from functools import partial

import httpx
import openai
import pytest

from tests.integration.cluster import Running
from tests.integration.conftest import NARROW
from tests.integration.prometheus import settled
from tests.integration.sse import RawStream

LONG = 1900


def request(stream: bool) -> dict:
    return {
        "model": NARROW,
        "prompt": "Once upon a time",
        "max_tokens": LONG,
        "ignore_eos": True,
        "stream": stream,
    }


@dataclass(slots=True)
class Meter:
    """The tokens that the model has generated since it was last asked, which takes seconds to be sure of."""

    http: httpx.Client
    last: float

    def advance(self) -> float:
        """How many they are, once the model is idle; what comes later counts for the next."""
        before, self.last = self.last, total(self.http)
        return self.last - before


def total(http: httpx.Client) -> float:
    return settled(http, NARROW).get(("llm_completion_tokens_total", NARROW), 0.0)


@pytest.fixture(scope="module")
def meter(http: httpx.Client) -> Meter:
    return Meter(http, total(http))


def leave_a_stream_and_a_request_in_line(port: int, stream: bool) -> None:
    with RawStream(port, "/v1/completions", request(stream=True)) as running:
        running.until(b"data: ")
        # The second one, streaming or not, is queued behind the first, and first in line.
        with RawStream(port, "/v1/completions", request(stream)):
            pass


def leave_a_whole_reply_that_is_generated(port: int) -> None:
    with RawStream(port, "/v1/completions", request(stream=False)):
        # In line behind it: once this waits, the first one runs.
        with RawStream(port, "/v1/completions", {**request(True), "max_tokens": 1}) as next_in_line:
            pass
        assert next_in_line.received == b""


def leave_generate(port: int) -> None:
    body = {"model": NARROW, "prompt": "Once", "max_tokens": LONG, "temperature": 1.0, "stream": True}
    with RawStream(port, "/generate", body) as stream:
        stream.until(b"data: ")


def test_requests_end_with_their_clients(app: Running, meter: Meter, client: openai.OpenAI) -> None:
    """All four together generate less than one of them asks for."""
    for leave in (
        partial(leave_a_stream_and_a_request_in_line, stream=True),
        partial(leave_a_stream_and_a_request_in_line, stream=False),
        leave_a_whole_reply_that_is_generated,
        leave_generate,
    ):
        leave(app.port)
        reply = client.completions.create(model=NARROW, prompt="The tide", max_tokens=5)
        assert reply.usage.completion_tokens == 5
    assert meter.advance() < LONG


def test_a_deadline_frees_the_sequence_and_is_told(
    http: httpx.Client, meter: Meter, client: openai.OpenAI
) -> None:
    within = {"X-Request-Timeout-Seconds": "0.5"}
    reply = http.post("/v1/completions", json=request(stream=False), headers=within)
    assert (reply.status_code, reply.json()["error"]["code"]) == (408, "deadline_exceeded")
    with pytest.raises(openai.APIError, match=r"within the 0\.5 s of X-Request-Timeout-Seconds"):
        list(
            client.completions.create(
                model=NARROW,
                prompt="Once",
                max_tokens=LONG,
                stream=True,
                extra_body={"ignore_eos": True},
                extra_headers=within,
            )
        )
    reply = client.completions.create(model=NARROW, prompt="The tide", max_tokens=5)
    assert reply.usage.completion_tokens == 5
    assert meter.advance() < 2 * LONG
