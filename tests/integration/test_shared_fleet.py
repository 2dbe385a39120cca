"""Three models on a cluster with room for one engine, and for two: every client is answered, none waits long.

Times are compared with those of a start on free room, measured on the same machine a moment before.
"""

import json
import os
import signal
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.cluster import Running, application, engine_settings
from tests.integration.fleet import WAIT_S, decisions, is_whole, until

pytestmark = pytest.mark.long

MODELS = ("alpha", "beta", "gamma")
KNOBS: dict[str, Any] = {
    "min_replicas": 0,
    "max_replicas": 1,
    "ttft_target_s": 5.0,
    "itl_target_s": 1.0,
    "drain_move_after_s": 1,
    "keep_alive_interval_s": 0.5,
    "turn_s": 30,
}


@dataclass
class Answer:
    model: str
    text: str
    first_s: float
    """Seconds until the first token."""


@contextmanager
def serving(engines: int) -> Iterator[Running]:
    """Serve the models with room for so many engines; each has started once, on free room."""
    settings = [
        engine_settings(name, resources={"engine": 1}, cpus_per_replica=0.1, drain_timeout_s=60)
        for name in MODELS
    ]
    running = Running(
        application(*settings, knobs=dict.fromkeys(MODELS, KNOBS)),
        environment={"RAY_OVERRIDE_RESOURCES": json.dumps({"CPU": 2, "engine": engines})},
    )
    running.environment["VLLM_CACHE_ROOT"] = str(Path.home() / ".cache/vllm")
    with running.serving():
        yield running


def ask(fleet: Running, model: str, tokens: int = 8, words: str = "Tell me about the sea.") -> Answer:
    """One stream, read to its end."""
    body = {
        "model": model, "messages": [{"role": "user", "content": words}],
        "max_tokens": tokens, "stream": True, "ignore_eos": True,
    }  # fmt: skip
    began, first_s, text = time.monotonic(), 0.0, ""
    with httpx.stream("POST", f"{fleet.url}/v1/chat/completions", json=body, timeout=WAIT_S) as reply:
        assert reply.status_code == 200, reply.read()
        for line in reply.iter_lines():
            if not first_s and line.startswith("data: ") and '"content"' in line:
                first_s = time.monotonic() - began
            text += line + "\n"
    return Answer(model, text, first_s)


def engines(fleet: Running) -> dict[str, int]:
    body = httpx.get(f"{fleet.url}/autoscaling/decisions", timeout=10).json()["autoscaler"]
    return {state["model"]: state["ready"] for state in body["models"].values()}


def reason_of(fleet: Running, model: str, old: int, new: int) -> str:
    found = [
        record
        for record in decisions(fleet)
        if (record["model"], record["old_target"], record["new_target"]) == (model, old, new)
    ]
    return str(found[-1]["reason"])


def all_whole(answers: list[Answer]) -> bool:
    return all(is_whole(answer.text) for answer in answers)


@pytest.fixture(scope="module")
def one_place() -> Iterator[Running]:
    with serving(1) as running:
        yield running


@pytest.fixture(scope="module")
def free_start_s(one_place: Running) -> float:
    """Seconds to the first token on free room, with a warm node; also the first start of every model."""
    ask(one_place, "alpha")
    times = []
    for model in (*MODELS[1:], *MODELS):
        # The place becomes free: the model's own limits end its last replica.
        knobs = {"model": engines_of(one_place), "knobs": {"downscale_to_zero_delay_s": 0}}
        httpx.post(f"{one_place.url}/autoscaling/knobs", json=knobs, timeout=60)
        until(lambda: sum(engines(one_place).values()), lambda ready: ready == 0, "no engine")
        knobs["knobs"] = {"downscale_to_zero_delay_s": 300}
        httpx.post(f"{one_place.url}/autoscaling/knobs", json=knobs, timeout=60)
        time.sleep(2.0)  # the engine's process has ended
        times.append(ask(one_place, model).first_s)
    print("starts on free room", [round(each, 2) for each in times])
    return statistics.median(times)


def engines_of(fleet: Running) -> str:
    found = until(lambda: [m for m, ready in engines(fleet).items() if ready], bool, "a ready engine")
    return str(found[0])


def test_clients_of_idle_models_wait_for_about_a_start(one_place: Running, free_start_s: float) -> None:
    times = []
    for model in ("alpha", "beta", "gamma", "beta", "alpha"):
        time.sleep(free_start_s)  # the model before has been idle
        answer = ask(one_place, model)
        assert is_whole(answer.text)
        times.append(answer.first_s)
    print("hand-overs from idle models", [round(each, 2) for each in times], "free", round(free_start_s, 2))
    assert "has been idle for" in reason_of(one_place, "beta", 1, 0)


def test_one_client_that_alternates_is_answered_each_time(one_place: Running, free_start_s: float) -> None:
    answers = [ask(one_place, model) for model in ("beta", "alpha") * 4]
    assert all_whole(answers)
    print("alternating", [round(a.first_s, 2) for a in answers], "free", round(free_start_s, 2))


def test_busy_models_take_turns_and_say_when(one_place: Running, free_start_s: float) -> None:
    """Each model always has a request; longer answers than a turn end or move."""
    end = time.monotonic() + 120

    def keep_asking(model: str) -> list[Answer]:
        answers = []
        while time.monotonic() < end:
            answers.append(ask(one_place, model, 200))
        return answers

    with ThreadPoolExecutor(3) as pool:
        by_model = list(pool.map(keep_asking, MODELS))
    for model, answers in zip(MODELS, by_model, strict=True):
        print(model, len(answers), "answers, longest wait", round(max(a.first_s for a in answers), 1))
        assert answers
        assert all_whole(answers)
    texts = [answer.text for answers in by_model for answer in answers]
    waits = [line for text in texts for line in text.splitlines() if "place=" in line]
    assert waits
    assert not [line for line in waits if "eta_s=unknown" in line]


def test_burst_to_every_model_breaks_no_stream(one_place: Running, free_start_s: float) -> None:
    with ThreadPoolExecutor(18) as pool:
        answers = list(pool.map(lambda number: ask(one_place, MODELS[number % 3], 40), range(18)))
    assert all_whole(answers)


def test_killed_engine_during_a_hand_over_loses_no_request(one_place: Running, free_start_s: float) -> None:
    holder = engines_of(one_place)
    taker = next(model for model in MODELS if model != holder)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask, one_place, taker, 60)
        until(lambda: one_place.processes(f"ray::ServeReplica:tideserve:Engine-{taker}"), bool, "a start")
        for process in one_place.processes(f"ray::ServeReplica:tideserve:Engine-{taker}"):
            os.kill(process.pid, signal.SIGKILL)
        assert is_whole(first.result(WAIT_S).text)


def test_two_places_serve_three_models(one_place: Running) -> None:
    one_place.end()
    with serving(2) as fleet:
        for model in MODELS:
            assert is_whole(ask(fleet, model).text)
        end = time.monotonic() + 60

        def keep_asking(model: str) -> list[Answer]:
            answers = []
            while time.monotonic() < end:
                answers.append(ask(fleet, model, 60))
            return answers

        with ThreadPoolExecutor(3) as pool:
            by_model = list(pool.map(keep_asking, MODELS))
        assert all(answers and all_whole(answers) for answers in by_model)
