"""LoRA adapters on a real engine: selection by name, one load for many calls, and broken adapters."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save

from serve_app.api.engine_client import EngineRequest, Operation, Traffic
from serve_app.api.engine_response import EngineResponse
from serve_app.api.errors import ApiError
from serve_app.engine.adapters import Adapters
from serve_app.engine.local_client import LocalEngine
from serve_app.settings.caller import Caller
from serve_app.settings.model_names import EMBEDDED_ADAPTER, Adapter
from serve_app.weights.adapter_store import AdapterStore, StoredAdapter
from serve_app.wire.data_plane import Continuation
from tests.api.connection import SCOPE, Connection
from tests.engine.calls import engine_call
from tests.engine.stub_engine_core import configured, real_serving
from tests.http_server import silent_server
from tests.ingress.fleet import Fleet
from tests.lora_files import write_adapter
from tests.stub_engine import LIMIT_S

BOUNDS = {"max_rank": 8, "max_loaded": 1, "max_cached": 2}


@dataclass
class Lora:
    """A real engine with LoRA, and the loads so far."""

    engine: LocalEngine
    adapters: Adapters
    folder: Path
    loads: list[str] = field(default_factory=list)
    now: float = 0.0

    def adapter(self, name: str, **files: Any) -> Adapter:
        source = self.folder / name
        if not source.exists():
            write_adapter(source, **{"seed": len(name) + sum(map(ord, name)), **files})
        return Adapter(name, str(source))

    async def text(
        self, adapter: Adapter | None = None, operation: Operation = "chat_completions", **body: Any
    ) -> dict[str, Any]:
        prompt: dict[str, Any] = {"messages": [{"role": "user", "content": "Tell me about the sea."}]}
        if operation not in ("chat_completions", "messages"):
            prompt = {"prompt": "The sea is"}
        lane, begun = body.pop("lane", "standard"), body.pop("begun", None)
        alias = body.pop("alias", "")
        name = "tide" if adapter is None else adapter.name
        document = {"model": name, "max_tokens": 8, "temperature": 0.0, **prompt, **body}
        request = engine_call(
            operation,
            json.dumps(document).encode(),
            "r-1",
            adapter=adapter,
            caller=Caller("anyone", lane, 1.0),
            continuation=begun,
            alias=alias,
        )
        async with self.engine.call(request) as reply:
            if reply.stream is not None:
                return {"frames": [frame async for frame in reply.stream]}
            answer: dict[str, Any] = json.loads(reply.body)
            return answer


@pytest.fixture(scope="module")
async def lora(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lora]:
    folder = tmp_path_factory.mktemp("adapters")
    settings, namespace, config = configured(lora=BOUNDS, max_model_len=512)
    assert settings.lora is not None
    async with real_serving(namespace, config) as serving:
        loads: list[str] = []
        adapters = Adapters(
            serving.engine,
            serving.adapters,
            settings.lora,
            AdapterStore(folder / "copies", 4 << 20),
            lambda name, _: loads.append(name),
        )
        client = LocalEngine(serving, settings, lambda _: None, adapters=adapters)
        known = Lora(client, adapters, folder, loads)
        adapters.clock = lambda: known.now
        yield known


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


@pytest.mark.parametrize(
    ("name", "files", "status", "words"),
    [
        ("rank", {"rank": 16}, 400, "LoRA rank 16 is greater than max_lora_rank 8"),
        ("module", {"module": "elsewhere"}, 400, "expected target modules"),
        ("narrow", {"hidden": 64}, 400, r"v_proj\.lora_A: \(4, 64\) in .* the module takes \(4, 256\)"),
        ("wide", {"hidden": 512}, 400, r"the module takes \(4, 256\)"),
        ("odd", {"values": 96}, 400, r"v_proj\.lora_B: \(96, 4\) in .* the module takes \(128, 4\)"),
        ("deep", {"layers": 3}, 400, r"layers\.2\.self_attn\.v_proj: no module with this name"),
        ("weaker", {"r": 8}, 400, r"\(4, 256\) in .* takes \(8, 256\) with the rank 8"),
        ("rank-pattern", {"rank_pattern": {"1.self_attn.v_proj": 2}}, 400, "with the rank 2"),
        ("multimodal", {"prefix": "base_model.model.language_model."}, 400, r"does is model\.layers\.0"),
        ("text-part", {"prefix": "base_model.model.model.language_model."}, 400, "no module with this name"),
        ("headless", {"prefix": "base_model.model."}, 400, r"layers\.0\.self_attn\.v_proj: no module"),
        ("dora", {"use_dora": True}, 400, "DoRA"),
        ("other-kind", {"peft_type": "ADALORA"}, 400, r"adapter_config\.json: peft_type = 'ADALORA'"),
        ("no-tensors", {"layers": 0}, 400, "no tensors of an adapter"),
    ],
)
async def test_broken_adapter_is_refused_with_the_reason(
    lora: Lora, name: str, files: dict[str, Any], status: int, words: str
) -> None:
    broken = lora.adapter(name, **files)
    kept = lora.adapters.names()

    with pytest.raises(ApiError, match=words) as refused:
        await lora.text(broken)

    assert (refused.value.status, refused.value.param) == (status, "model")
    assert str(lora.folder) not in refused.value.message
    assert lora.adapters.names() == kept
    good = lora.adapter("one")
    assert (await lora.text(good))["model"] == "one"


@pytest.mark.parametrize("name", ["model.embed_tokens", "lm_head"])
async def test_adapter_of_more_tokens_is_refused(lora: Lora, name: str) -> None:
    source = Path(lora.adapter(f"more-{name}").source)
    tensors = load_file(source / "adapter_model.safetensors")
    rows = {f"base_model.model.{name}.base_layer.weight": np.zeros((2050, 256), np.float32)}
    (source / "adapter_model.safetensors").write_bytes(save(tensors | rows))

    with pytest.raises(ApiError, match="has 2050 rows; the vocabulary of the model has 2048") as refused:
        await lora.text(Adapter(f"more-{name}", str(source)))

    assert refused.value.status == 400


async def test_broken_files_are_refused(lora: Lora) -> None:
    scalar = {"model.layers.0.self_attn.q_proj.lora_A.weight": np.array(1.0, np.float32)}
    for name, weights in {"garbage": b"no tensors", "scalar": save(scalar)}.items():
        source = Path(lora.adapter(name).source)
        (source / "adapter_model.safetensors").write_bytes(weights)
        kept = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            lora.now += 31.0

            with pytest.raises(ApiError, match="cannot be loaded") as refused:
                await lora.text(Adapter(name, str(source)))

            assert refused.value.status == 400
            assert str(lora.folder) not in refused.value.message
        assert len(os.listdir("/proc/self/fd")) == kept


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


async def test_missing_adapter_is_404(lora: Lora) -> None:
    with pytest.raises(ApiError, match=r"has no adapter_config\.json") as refused:
        await lora.text(Adapter("nowhere", str(lora.folder / "nowhere")))

    assert (refused.value.status, refused.value.code) == (404, "model_not_found")


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


async def test_hung_sources_do_not_delay_another_source(lora: Lora) -> None:
    lora.adapter("beside")
    memory = fsspec.filesystem("memory")
    for file in (lora.folder / "beside").iterdir():
        memory.pipe(f"/beside/{file.name}", file.read_bytes())
    with silent_server() as address:
        hung = [
            asyncio.create_task(lora.text(Adapter(f"hung-{number}", f"{address}/{number}")))
            for number in range(8)
        ]
        async with asyncio.timeout(LIMIT_S):
            answer = await lora.text(Adapter("beside", "memory://beside"))

        assert answer["model"] == "beside"
        assert not any(task.done() for task in hung)
    # The server has closed the connections.
    for task in hung:
        with pytest.raises(ApiError, match="its source cannot be read now") as refused:
            await task
        assert (refused.value.status, refused.value.code) == (503, "adapter_unavailable")
        assert refused.value.headers == {"Retry-After": "30"}


async def test_failed_load_is_remembered_for_a_while(lora: Lora) -> None:
    source = lora.folder / "late"
    with pytest.raises(ApiError):
        await lora.text(Adapter("late", str(source)))
    late = lora.adapter("late")

    with pytest.raises(ApiError):
        await lora.text(late)
    lora.now += 31.0

    assert (await lora.text(late))["model"] == "late"


async def test_broken_adapter_hurts_no_running_stream(lora: Lora) -> None:
    good = lora.adapter("one")
    alone = await lora.text(good, "completions", max_tokens=64, ignore_eos=True)

    async def break_often() -> None:
        for number in range(6):
            with pytest.raises(ApiError):
                await lora.text(lora.adapter(f"broken-{number}", hidden=64))

    answer, _ = await asyncio.gather(
        lora.text(good, "completions", max_tokens=64, ignore_eos=True), break_often()
    )

    assert answer["choices"] == alone["choices"]


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
