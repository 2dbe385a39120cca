"""LoRA adapters of a running application: added and removed by the knob, on two engine replicas."""

import copy
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.cluster import Running, application, engine_settings
from tests.integration.fleet import ENGINES, MODEL, WAIT_S, chat, is_whole, streamed, until
from tests.lora_files import write_adapter

LORA = {"max_rank": 8, "max_loaded": 2, "max_cached": 4}


@pytest.fixture(scope="module")
def lora() -> Iterator[Running]:
    engine = engine_settings(MODEL, lora=LORA)
    running = Running(application(engine, knobs={MODEL: {"min_replicas": 2, "max_replicas": 2}}))
    running.environment["XDG_CACHE_HOME"] = str(running.folder / "cache")
    with running.serving():
        yield running


def with_adapters(app: Running, **sources: str) -> dict[str, Any]:
    edited = copy.deepcopy(app.document)
    edited["applications"][0]["deployments"][0]["user_config"]["autoscaling"][MODEL]["adapters"] = sources
    return edited


def served(app: Running) -> list[str]:
    return [model["id"] for model in httpx.get(f"{app.url}/v1/models", timeout=10).json()["data"]]


def ask(app: Running, model: str, words: str = "Tell me about the sea.") -> httpx.Response:
    body = {**chat(words, 24, stream=False), "model": model, "temperature": 0}
    return httpx.post(f"{app.url}/v1/chat/completions", json=body, timeout=WAIT_S)


def text(reply: httpx.Response) -> str:
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["message"]["content"])


def test_adapters_come_and_go_without_a_restart(lora: Running, tmp_path: Path) -> None:
    engines = {process.pid for process in lora.processes(ENGINES)}
    broken = str(write_adapter(tmp_path / "broken", hidden=64))
    assert ask(lora, "pirate").status_code == 404
    base = text(ask(lora, MODEL))

    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(streamed, lora, "Tell me about the sea.", 1000)
        lora.deploy(with_adapters(lora, pirate="embedded", broken=broken))
        until(lambda: served(lora), lambda names: names == [MODEL, "pirate", "broken"], "the adapters")
        assert text(ask(lora, "pirate")).startswith("Ahoy!")
        assert ask(lora, "broken").status_code == 400
        assert text(ask(lora, MODEL)) == base
        assert is_whole(stream.result(WAIT_S))
    assert {process.pid for process in lora.processes(ENGINES)} == engines

    def loaded() -> dict[str, int]:
        found: dict[str, int] = httpx.get(f"{lora.url}/autoscaling/decisions").json()["adapters"][MODEL]
        return found

    until(loaded, lambda holders: holders == {"pirate": 1}, "the report of the loaded adapter")
    lora.deploy(with_adapters(lora))
    until(lambda: served(lora), lambda names: names == [MODEL], "the end of the adapters")
    assert ask(lora, "pirate").status_code == 404
