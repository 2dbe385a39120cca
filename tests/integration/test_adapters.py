"""LoRA adapters of a running application: added and removed by the knob, on two engine replicas."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from tests.integration.cluster import Running
from tests.integration.fleet import (
    ENGINES,
    MODEL,
    WAIT_S,
    chat,
    is_whole,
    streamed,
    until,
    until_ready,
    with_knobs,
)
from tests.lora_files import write_adapter


def with_adapters(fleet: Running, **sources: str) -> dict[str, Any]:
    return with_knobs(fleet, min_replicas=2, max_replicas=2, adapters=sources)


def served(fleet: Running) -> list[str]:
    return [model["id"] for model in httpx.get(f"{fleet.url}/v1/models", timeout=10).json()["data"]]


def ask(fleet: Running, model: str, words: str = "Tell me about the sea.") -> httpx.Response:
    body = {**chat(words, 24, stream=False), "model": model, "temperature": 0}
    return httpx.post(f"{fleet.url}/v1/chat/completions", json=body, timeout=WAIT_S)


def text(reply: httpx.Response) -> str:
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["message"]["content"])


def test_adapters_come_and_go_without_a_restart(fleet: Running, tmp_path: Path) -> None:
    fleet.deploy(with_adapters(fleet))
    until_ready(fleet, 2)
    engines = {process.pid for process in fleet.processes(ENGINES)}
    broken = str(write_adapter(tmp_path / "broken", hidden=64))
    assert ask(fleet, "pirate").status_code == 404
    base = text(ask(fleet, MODEL))

    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(streamed, fleet, "Tell me about the sea.", 1000)
        fleet.deploy(with_adapters(fleet, pirate="embedded", broken=broken))
        until(lambda: served(fleet), lambda names: names == [MODEL, "pirate", "broken"], "the adapters")
        assert text(ask(fleet, "pirate")).startswith("Ahoy!")
        assert ask(fleet, "broken").status_code == 400
        assert text(ask(fleet, MODEL)) == base
        assert is_whole(stream.result(WAIT_S))
    assert {process.pid for process in fleet.processes(ENGINES)} == engines

    def loaded() -> dict[str, int]:
        found: dict[str, int] = httpx.get(f"{fleet.url}/autoscaling/decisions").json()["adapters"][MODEL]
        return found

    until(loaded, lambda holders: holders == {"pirate": 1}, "the report of the loaded adapter")
    fleet.deploy(with_adapters(fleet))
    until(lambda: served(fleet), lambda names: names == [MODEL], "the end of the adapters")
    assert ask(fleet, "pirate").status_code == 404
