"""Three models on a cluster with room for one engine, and for two: every client is answered, none waits long.

One model has two variants, which fit the same place. Times are compared with those of a start on free room,
measured on the same machine a moment before.
"""

import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.cluster import Running, application, engine_settings
from tests.integration.fleet import WAIT_S, decisions, is_whole, newest, until
from tests.timing import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

MODELS = ("alpha", "beta", "gamma")
VARIANTS = {
    "gamma": [
        {"name": name, "resources": {"engine": 1}, "usd_per_hour": usd_per_hour}
        for name, usd_per_hour in (("cheap", 1), ("dear", 2))
    ]
}
ENGINES = "ray::ServeReplica:tideserve:Engine"
TURNS_S = 400.0
"""A model waits for the turns of two others, with drains and starts, on a busy machine."""
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
    place: dict[str, Any] = {"resources": {"engine": 1}, "cpus_per_replica": 0.1, "drain_timeout_s": 60}
    settings = [engine_settings(name, **place, variants=VARIANTS.get(name, [])) for name in MODELS]
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


def keep_asking(
    fleet: Running, tokens: int, seconds: float, disturb: Callable[[list[Answer]], object] = lambda _: None
) -> list[Answer]:
    """Return the answers of clients, one of each model, that ask for `seconds` and until `disturb` returns.

    `disturb` gets the answers so far.
    """
    end, disturbed = time.monotonic() + seconds, threading.Event()
    answers: list[Answer] = []

    def client(model: str) -> None:
        while time.monotonic() < end or not disturbed.is_set():
            answers.append(ask(fleet, model, tokens))

    with ThreadPoolExecutor(3) as pool:
        clients = [pool.submit(client, model) for model in MODELS]
        try:
            disturb(answers)
        finally:
            disturbed.set()
        for each in clients:
            each.result()
    return answers


def kill(fleet: Running, title: str) -> None:
    """Kill the processes with this title, of which there must be one."""
    for process in until(lambda: fleet.processes(title), bool, title):
        process.kill()


def engines(fleet: Running) -> dict[str, int]:
    body = httpx.get(f"{fleet.url}/autoscaling/decisions", timeout=10).json()["autoscaler"]
    return {state["model"]: state["ready"] for state in body["models"].values()}


def draining(fleet: Running) -> list[str]:
    models = httpx.get(f"{fleet.url}/autoscaling/decisions", timeout=10).json()["autoscaler"]["models"]
    return [state["model"] for state in models.values() if state["draining"]]


def takers(fleet: Running, after: int = 0) -> list[tuple[str, str]]:
    """Return who gave a place, and to whom."""
    return [(each["model"], each["gives_to"]) for each in decisions(fleet, after) if "gives_to" in each]


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
    assert {("beta", "gamma"), ("gamma", "beta")} <= {*takers(one_place)}


def test_one_client_that_alternates_is_answered_each_time(one_place: Running, free_start_s: float) -> None:
    answers = [ask(one_place, model) for model in ("beta", "alpha") * 4]
    assert all_whole(answers)
    print("alternating", [round(a.first_s, 2) for a in answers], "free", round(free_start_s, 2))


def test_busy_models_take_turns_and_say_when(one_place: Running, free_start_s: float) -> None:
    """Each model always has a request; longer answers than a turn end or move."""
    answers = keep_asking(one_place, 200, 120)
    for model in MODELS:
        waits_s = [answer.first_s for answer in answers if answer.model == model]
        print(model, len(waits_s), "answers, longest wait", round(max(waits_s), 1))
    assert all_whole(answers)
    texts = [answer.text for answer in answers]
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
        kill(one_place, f"{ENGINES}-{taker}")
        assert is_whole(first.result(WAIT_S).text)


def test_killed_giver_and_controller_lose_no_request(one_place: Running, free_start_s: float) -> None:
    """The giver drains, with a stream that nothing else can go on with; the controller has told it to."""

    def kill_both(answers: list[Answer]) -> None:
        giver = wait_until(lambda: draining(one_place), what="a drain", limit_s=TURNS_S, every_s=0.1)[0]
        kill(one_place, f"{ENGINES}-{giver}")
        before = newest(one_place)
        wait_until(lambda: takers(one_place, before), what="a hand-over", limit_s=TURNS_S, every_s=0.1)
        kill(one_place, "ray::ServeController")
        count = len(answers)
        wait_until(
            lambda: {answer.model for answer in answers[count + len(MODELS) :]},
            lambda models: models == {*MODELS},
            "answers of all models",
            TURNS_S,
        )

    answers = keep_asking(one_place, 1800, 0, kill_both)

    assert all_whole(answers)
    assert any(": continued on another replica after " in answer.text for answer in answers)


def test_two_places_serve_three_models(one_place: Running) -> None:
    one_place.end()
    with serving(2) as fleet:
        for model in MODELS:
            assert is_whole(ask(fleet, model).text)
        answers = keep_asking(fleet, 60, 60)
        assert {answer.model for answer in answers} == {*MODELS}
        assert all_whole(answers)
