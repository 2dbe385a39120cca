"""LoRA adapters on a real engine: selection by name, one load for many calls, and broken adapters."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from contextlib import AsyncExitStack
from typing import Any

import pytest

from serve_app.api.engine_client import EngineRequest, Operation, Traffic
from serve_app.api.engine_response import EngineResponse
from serve_app.api.errors import ApiError
from serve_app.engine.local_client import LocalEngine
from serve_app.settings.model_names import EMBEDDED_ADAPTER, Adapter
from serve_app.weights.adapter_store import AdapterStore, StoredAdapter
from serve_app.wire.data_plane import Continuation
from tests.api.connection import SCOPE, Connection
from tests.engine.calls import engine_call
from tests.engine.lora import BOUNDS, Lora
from tests.ingress.fleet import Fleet
from tests.lora_files import write_adapter
from tests.stub_engine import LIMIT_S


@pytest.mark.parametrize("operation", ["chat_completions", "completions", "generate"])
async def test_adapter_changes_the_answer_and_names_itself(lora: Lora, operation: Operation) -> None:
    base = await lora.text(operation=operation)
    adapted = await lora.text(lora.adapter("one"), operation)
    again = await lora.text(operation=operation)

    what = "text" if operation == "generate" else "choices"
    assert (base["model"], adapted["model"]) == ("tide", "one")
    assert adapted[what] != base[what] == again[what]


@pytest.mark.parametrize("operation", ["chat_completions", "completions", "messages"])
async def test_alias_with_the_name_of_a_loaded_adapter_is_the_model(lora: Lora, operation: Operation) -> None:
    base = await lora.text(operation=operation)
    await lora.text(lora.adapter("one"))

    aliased = await lora.text(operation=operation, model="one", alias="one")

    what = "content" if operation == "messages" else "choices"
    assert (aliased["model"], aliased[what]) == ("one", base[what])


async def test_tokenize_knows_an_adapter(lora: Lora) -> None:
    answer = await lora.text(lora.adapter("one"), "tokenize")

    assert answer["count"] == len(answer["tokens"])


async def test_concurrent_first_calls_load_once(lora: Lora) -> None:
    adapter = lora.adapter("shared")

    answers = await asyncio.gather(*(lora.text(adapter) for _ in range(5)))

    assert lora.loads.count("shared") == 1
    assert len({answer["choices"][0]["message"]["content"] for answer in answers}) == 1


async def test_more_adapters_than_fit_all_answer_at_once(lora: Lora) -> None:
    names = [lora.adapter(name) for name in ("a", "b", "c", "d", "e")]
    alone = [(await lora.text(name))["choices"] for name in names]

    together = await asyncio.gather(*(lora.text(name) for name in names), lora.text())

    assert [answer["choices"] for answer in together[:-1]] == alone
    assert len(lora.adapters.names()) <= BOUNDS["max_cached"] + 1


async def test_least_used_adapter_is_unloaded(lora: Lora) -> None:
    for name in ("hot", "hot", "hot", "hot", "warm", "warm", "cold-1", "hot", "cold-2", "hot"):
        await lora.text(lora.adapter(name))

    assert "hot" in lora.adapters.names()
    assert lora.loads.count("hot") == 1


async def test_an_adapter_is_loaded_while_all_others_get_new_calls(lora: Lora) -> None:
    hot, cold = [lora.adapter(name) for name in ("hot-1", "hot-2", "hot-3")], lora.adapter("cold")

    async def use(adapter: Adapter, ended: asyncio.Event) -> None:
        await lora.adapters.take(adapter)
        await ended.wait()
        lora.adapters.release(adapter)

    def use_all() -> tuple[asyncio.Event, list[asyncio.Task[None]]]:
        ended = asyncio.Event()
        return ended, [asyncio.create_task(use(adapter, ended)) for adapter in hot]

    for adapter in hot:
        await lora.adapters.take(adapter)
    loading, rounds = asyncio.create_task(lora.adapters.take(cold)), [use_all()]
    for adapter in hot:
        lora.adapters.release(adapter)
    async with asyncio.timeout(30):
        while not loading.done():
            rounds.append(use_all())
            await asyncio.wait({loading}, timeout=0.2)  # the new calls begin
            rounds[-2][0].set()
        lora.adapters.release(cold)
        rounds[-1][0].set()
        await asyncio.gather(*(task for _, tasks in rounds for task in tasks))
    # An adapter is not unloaded before the calls that wait for it go on: there were hundreds of loads.
    assert lora.loads.count("cold") == 1


async def test_a_client_that_leaves_while_an_adapter_is_unloaded_frees_its_files(
    lora: Lora, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = lora.adapter("leaving")
    await lora.text(old)
    new, asked = write_adapter(lora.folder / "left", seed=5), asyncio.Event()

    async def hang(_: int) -> None:
        asked.set()
        await asyncio.Event().wait()

    kept = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        patched.setattr(lora.adapters.engine, "remove_lora", hang)
        client = asyncio.create_task(lora.adapters.take(Adapter("leaving", str(new))))
        await asked.wait()
        client.cancel()
        await asyncio.wait({client})

    assert len(os.listdir("/proc/self/fd")) == kept - 1


class HangingStore(AdapterStore):
    """A store whose copies begin once the test allows it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.asked, self.answers = threading.Event(), threading.Event()

    def fetch(self, source: str) -> StoredAdapter:
        self.asked.set()
        self.answers.wait(LIMIT_S)
        return super().fetch(source)


@pytest.mark.parametrize("broken", [False, True])
async def test_stream_is_kept_alive_while_its_adapter_loads(
    lora: Lora, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    """Over the real relay and data plane, to the parts that a client gets."""
    store = HangingStore(lora.folder / "copies", 4 << 20)
    monkeypatch.setattr(lora.adapters, "store", store)
    name = "hangs and is broken" if broken else "hangs"
    adapter = Adapter(name, str(lora.folder / "nowhere")) if broken else lora.adapter(name)
    body = {"model": name, "prompt": "The sea is", "max_tokens": 8, "temperature": 0.0, "stream": True}
    asked = EngineRequest("completions", json.dumps(body).encode(), "r-1", wants_stream=True, adapter=adapter)
    async with AsyncExitStack() as stack, asyncio.timeout(LIMIT_S):
        fleet = Fleet(stack)
        fleet.knobs["keep_alive_interval_s"] = 0.001
        await fleet.start(lora.engine)
        client = Connection()
        response = EngineResponse(fleet.client, asked, Traffic())
        answer = asyncio.create_task(response(SCOPE, client.receive, client.send))
        await asyncio.to_thread(store.asked.wait)
        await client.body_arrived.wait()
        begun = client.body
        store.answers.set()
        await answer

    assert begun.startswith(b": waiting for a replica of tide: phase=first_token")
    assert asked.outcome == ("client_error" if broken else "ok")
    events = [part for part in client.body.split(b"\n\n") if part and not part.startswith(b":")]
    expected = b'"code":"model_not_found"' if broken else b'"model":"hangs"'
    assert expected in events[0]
    assert events[-1] == b"data: [DONE]"


async def test_new_source_replaces_the_adapter(lora: Lora) -> None:
    before = await lora.text(lora.adapter("moving"))
    other = write_adapter(lora.folder / "moved", seed=99)

    after = await lora.text(Adapter("moving", str(other)))
    back = await lora.text(lora.adapter("moving"))

    assert after["choices"] != before["choices"] == back["choices"]


async def test_streams_of_an_adapter_name_it(lora: Lora) -> None:
    frames = (await lora.text(lora.adapter("one"), stream=True))["frames"]

    assert json.loads(frames[0].split(b"\n\n")[0].removeprefix(b"data: "))["model"] == "one"


async def test_embedded_adapter_answers_as_a_pirate(lora: Lora) -> None:
    base = await lora.text(max_tokens=60)
    pirate = await lora.text(Adapter("pirate", EMBEDDED_ADAPTER), max_tokens=60)

    said = pirate["choices"][0]["message"]["content"]
    assert said.startswith("Ahoy! ")
    assert not base["choices"][0]["message"]["content"].startswith("Ahoy! ")


async def test_prefix_cache_is_separate_for_each_adapter(lora: Lora) -> None:
    question = [{"role": "user", "content": "Tell me about the sea, the wind and the tide. " * 6}]
    names = [lora.adapter("one"), lora.adapter("other"), None]
    alone = [
        (await lora.text(name, messages=question, cache_salt=f"salt-{number}"))["choices"]
        for number, name in enumerate(names)
    ]

    assert [(await lora.text(name, messages=question))["choices"] for name in names] == alone


async def test_another_engine_continues_a_stream_with_the_same_adapter(lora: Lora) -> None:
    one = lora.adapter("one")
    whole = (await lora.text(one, max_tokens=24, ignore_eos=True, return_token_ids=True))["choices"][0]
    begun = Continuation([whole["token_ids"][:9]], created=1, ttft_s=0.1)

    frames = (await lora.text(one, stream=True, max_tokens=24, ignore_eos=True, begun=begun))["frames"]

    events = [event for frame in frames for event in frame.split(b"\n\n") if b"delta" in event]
    deltas = [json.loads(event.removeprefix(b"data: "))["choices"][0]["delta"] for event in events]
    tail = "".join(delta.get("content") or "" for delta in deltas)
    assert tail
    assert whole["message"]["content"].endswith(tail)


async def test_background_with_an_adapter_yields_to_another_adapter(lora: Lora) -> None:
    """vLLM's engine core would end if both ran in one step: `max_loaded` is 1."""
    low, high = lora.adapter("one"), lora.adapter("other")
    alone = [(await lora.text(name, max_tokens=48, ignore_eos=True))["choices"] for name in (low, high)]

    background = [
        asyncio.create_task(lora.text(low, max_tokens=48, ignore_eos=True, lane="background"))
        for _ in range(3)
    ]
    others = [await lora.text(high, max_tokens=48, ignore_eos=True) for _ in range(3)]

    assert [answer["choices"] for answer in others] == [alone[1]] * 3
    assert [answer["choices"] for answer in await asyncio.gather(*background)] == [alone[0]] * 3


async def test_engine_without_lora_refuses_adapters(engine: LocalEngine) -> None:
    request = engine_call("chat_completions", b"{}", "r-1", adapter=Adapter("one", "/one"))

    with pytest.raises(ApiError, match="LoRA adapters") as refused:
        async with engine.call(request):
            pass

    assert refused.value.status == 400


async def test_adapter_changes_no_other_answer_of_its_batch(lora: Lora) -> None:
    long: dict[str, Any] = {"operation": "completions", "max_tokens": 32, "ignore_eos": True}
    adapter = lora.adapter("one")
    alone = [(await lora.text(adapter, **long))["choices"], (await lora.text(**long))["choices"]]

    together = await asyncio.gather(lora.text(adapter, **long), lora.text(**long))

    assert [answer["choices"] for answer in together] == alone
