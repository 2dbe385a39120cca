import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from benchmarks.load_clients.stub_script import Served
from benchmarks.load_clients.stub_server import serve
from loadtests.client.pacer import Pacer

Stub = tuple[str, "asyncio.Queue[Served]"]


@pytest.fixture
async def stub() -> AsyncIterator[Stub]:
    served: asyncio.Queue[Served] = asyncio.Queue()
    async with serve(ttft_s=0.0, itl_s=0.0, tokens=3, record=served.put_nowait) as port:
        yield f"http://127.0.0.1:{port}", served


async def _post(url: str, path: str = "/v1/chat/completions", **body: Any) -> tuple[int, str, Any]:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi there"}], **body}
    async with aiohttp.ClientSession() as session, session.post(url + path, json=body) as response:
        return response.status, await response.text(), response.headers


def _chunks(text: str) -> list[dict[str, Any]]:
    frames = [frame.removeprefix("data: ") for frame in text.split("\n\n") if frame.startswith("data: ")]
    assert frames.pop() == "[DONE]"
    return [json.loads(frame) for frame in frames]


async def test_a_stream_is_shaped_like_vllms_with_usage_when_asked_for(stub: Stub):
    status, text, _ = await _post(stub[0], stream=True, stream_options={"include_usage": True})
    *chunks, usage = _chunks(text)
    assert status == 200
    assert [chunk["choices"][0]["delta"]["content"] for chunk in chunks] == ["", " t0", " t1", " t2"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert usage["usage"] == {"prompt_tokens": 2, "total_tokens": 5, "completion_tokens": 3}


async def test_completions_take_token_ids_and_stream_text(stub: Stub):
    _, text, _ = await _post(stub[0], "/v1/completions", messages=[], prompt=[1, 2], stream=True)
    assert "".join(chunk["choices"][0]["text"] for chunk in _chunks(text)) == " t0 t1 t2"


async def test_the_record_says_when_each_token_was_written(stub: Stub):
    await _post(stub[0], stream=True, stub={"ttft_s": 0.02, "itl_s": 0.01})
    served = await stub[1].get()
    due = [served.arrived_s + 0.02 + 0.01 * token for token in range(3)]
    assert (served.outcome, served.status, served.prompt) == ("done", 200, "hi there")
    assert all(written >= at for written, at in zip(served.written_s, due, strict=True))


async def test_comments_announce_a_cold_start_before_the_first_token(stub: Stub):
    _, text, _ = await _post(stub[0], stream=True, stub={"comments_s": 0.03, "comment_every_s": 0.01})
    served = await stub[1].get()
    assert served.comments == 3
    assert text.startswith(": waiting for a replica of m: phase=imports eta_s=1 waited_s=0\n\n")
    assert served.written_s[0] >= served.arrived_s + 0.03


async def test_an_error_frame_follows_the_tokens_and_ends_with_done(stub: Stub):
    status, text, _ = await _post(stub[0], stream=True, stub={"fail": "error_frame", "fail_after_tokens": 2})
    assert status == 200
    assert 'event: error\ndata: {"error":' in text
    assert text.endswith("data: [DONE]\n\n")
    assert len((await stub[1].get()).written_s) == 2


async def test_a_cut_ends_the_connection_without_the_end_of_the_body(stub: Stub):
    with pytest.raises(aiohttp.ClientPayloadError):
        await _post(stub[0], stream=True, stub={"fail": "cut", "fail_after_tokens": 1})
    assert (await stub[1].get()).outcome == "cut"


async def test_a_refusal_says_when_to_retry_and_may_be_the_only_one(stub: Stub):
    script = {"fail": "503", "fail_times": 1, "retry_after_s": 7}
    status, _, headers = await _post(stub[0], stream=True, stub=script)
    assert (status, headers["Retry-After"]) == (503, "7")
    assert (await _post(stub[0], stream=True, stub=script))[0] == 200


async def test_a_client_that_goes_away_is_recorded_as_cancelled(stub: Stub):
    body = {"stream": True, "stub": {"fail": "stall", "fail_after_tokens": 1, "itl_s": 60.0}}
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{stub[0]}/v1/completions", json=body) as response:
            await response.content.readuntil(b"\n\n")
    served = await stub[1].get()
    assert (served.outcome, len(served.written_s)) == ("cancelled", 1)


async def test_a_script_with_an_unknown_key_is_refused(stub: Stub):
    status, text, _ = await _post(stub[0], stub={"fial": "cut"})
    assert status == 400
    assert "fial" in text


async def test_a_reply_without_a_stream_comes_whole(stub: Stub):
    _, text, _ = await _post(stub[0])
    assert json.loads(text)["choices"][0]["message"]["content"] == " t0 t1 t2"


async def test_the_pacer_calls_in_order_of_time_and_never_early():
    loop = asyncio.get_running_loop()
    done: asyncio.Queue[tuple[str, float]] = asyncio.Queue()
    start = loop.time()
    with Pacer(loop) as pacer:
        pacer.at(start + 0.02, lambda: done.put_nowait(("second", loop.time())))
        pacer.at(start + 0.01, lambda: done.put_nowait(("first", loop.time())))
        first, second = await done.get(), await done.get()
    assert (first[0], second[0]) == ("first", "second")
    assert first[1] >= start + 0.01
    assert second[1] >= start + 0.02
