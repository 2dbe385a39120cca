"""Ray's own proxy, and a model that cannot start beside one that can."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import psutil
import pytest

from tests.integration.cluster import Running, application, engine_settings
from tests.integration.http_contract import Case, cases, send
from tests.integration.listeners import role_of
from tests.integration.prometheus import FAST_EXPORT, settled
from tests.integration.sse import RawStream, over_http_1_0

GOOD = "good"
BROKEN = "broken"

pytestmark = pytest.mark.long

SEA = [{"role": "user", "content": "Tell me about the sea."}]


def good_is_up(status: int, body: dict) -> bool:
    return body.get("models", {}).get(GOOD, {}).get("state") == "up"


def both_are_decided(status: int, body: dict) -> bool:
    models = body.get("models", {})
    states = {name: model["state"] for name, model in models.items()}
    return states == {GOOD: "up", BROKEN: "failed"}


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    empty = tmp_path_factory.mktemp("no-weights")
    running = Running(
        application(
            engine_settings(GOOD, max_num_seqs=1),
            engine_settings(BROKEN, model=str(empty), env={"HF_HUB_OFFLINE": "1"}),
        ),
        proxy="ray",
        environment=FAST_EXPORT,
    )
    with running.serving(until=good_is_up):
        yield running


@pytest.fixture(scope="module")
def http(other: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=other.url, timeout=60) as made:
        yield made


@pytest.fixture(scope="module")
def client(other: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{other.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_a_stream_has_the_text_of_a_whole_answer(client: openai.OpenAI) -> None:
    asked = {"model": GOOD, "messages": SEA, "max_tokens": 40, "temperature": 0}
    whole = client.chat.completions.create(**asked).choices[0].message.content
    stream = client.chat.completions.create(**asked, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole


def test_http_1_0_gets_a_stream_without_chunks(other: Running) -> None:
    body = {"model": GOOD, "prompt": "Once", "max_tokens": 20, "stream": True}
    head, events = over_http_1_0(other.port, "/v1/completions", body, "Connection: keep-alive")
    assert "transfer-encoding" not in head
    assert events.startswith(b"data: {")
    assert events.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("case", cases(GOOD), ids=lambda case: case.name)
def test_form_of_a_request_reaches_the_ingress(other: Running, case: Case) -> None:
    """As through HAProxy, in `test_http_contract`."""
    status, answer = send(other.port, case)
    assert (status, (answer.get("error") or {}).get("code")) == (case.status, case.code)


@pytest.mark.parametrize("lines", [1, 20_000])
def test_uploaded_file_comes_back(client: openai.OpenAI, lines: int) -> None:
    data = b"\n".join(b'{"custom_id": "%d"}' % number for number in range(lines))
    file = client.files.create(file=("in.jsonl", data), purpose="batch")
    assert file.bytes == len(data)
    assert client.files.content(file.id).read() == data


def test_an_error_has_the_same_shape_and_one_request_id(http: httpx.Client) -> None:
    reply = http.post("/v1/chat/completions", json={"model": GOOD, "messages": SEA, "temperature": 9})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "temperature"
    assert len(reply.headers.get_list("x-request-id")) == 1


def test_a_client_that_leaves_frees_its_sequence(
    other: Running, http: httpx.Client, client: openai.OpenAI
) -> None:
    before = settled(http, GOOD).get(("llm_completion_tokens_total", GOOD), 0.0)
    body = {"model": GOOD, "prompt": "Once", "max_tokens": 1900, "ignore_eos": True, "stream": True}
    with RawStream(other.port, "/v1/completions", body) as stream:
        stream.until(b"data: ")
    client.completions.create(model=GOOD, prompt="The tide", max_tokens=5)
    assert settled(http, GOOD, above=before)["llm_completion_tokens_total", GOOD] - before < 1900


def test_a_deadline_is_ours_to_tell_and_not_rays(http: httpx.Client) -> None:
    body = {"model": GOOD, "prompt": "Once", "max_tokens": 1900, "ignore_eos": True}
    within = {"X-Request-Timeout-Seconds": "1.5"}
    whole = http.post("/v1/completions", json=body, headers=within)
    assert (whole.status_code, whole.json()["error"]["code"]) == (408, "deadline_exceeded")
    stream = http.post("/v1/completions", json={**body, "stream": True}, headers=within)
    *_, event, done = stream.text.removesuffix("\n\n").split("\n\n")
    assert (stream.status_code, done) == (200, "data: [DONE]")
    assert event.startswith("event: error")


def test_a_failed_engine_makes_ready_503_with_the_reason(other: Running, http: httpx.Client) -> None:
    other.wait_ready(until=both_are_decided)  # Ray tries three times, while the tests above go on
    reply = http.get("/ready")
    assert reply.status_code == 503
    broken = reply.json()["models"][BROKEN]
    assert broken["state"] == "failed"
    # The phase and vLLM's own words, and not Ray's account of the actor that died of them.
    assert broken["reason"].startswith("configuration: ")
    assert "no-weights" in broken["reason"]
    assert "ServeReplica" not in broken["reason"]


def test_its_requests_get_a_503_and_the_others_an_answer(http: httpx.Client) -> None:
    body = {"messages": SEA, "max_tokens": 8}
    refused = http.post("/v1/chat/completions", json={**body, "model": BROKEN})
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "model_unavailable"
    assert refused.headers["retry-after"]
    assert http.post("/v1/chat/completions", json={**body, "model": GOOD}).status_code == 200


def test_without_the_gcs_it_ends_and_names_the_log(other: Running) -> None:
    """Ends the application."""
    started = other.descendants()
    [gcs] = [process for process in started if role_of(process) == "GCS"]

    gcs.kill()

    assert other.process is not None
    assert other.process.wait(20) == 1  # 5 s on a machine without other tests
    [log] = re.findall(r"Ray's GCS \(process \d+\) ended; its log: (\S+)", other.log)
    assert Path(log).is_file()
    _, alive = psutil.wait_procs(started, timeout=10)
    assert alive == []
