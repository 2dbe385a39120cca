"""Odd bodies as a flood on a live server, from a seed: none may be counted as load, or end a process.

`make fuzz SEED=... MINUTES=...` runs this file. Clients send bodies made from the request schemas to every
POST path, and some clients leave before the answer. Beside them comes one good request a second.
"""

import itertools
import json
import os
import queue
import random
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
import hypothesis
import pytest
import requests
import schemathesis

from tests.integration.cluster import Running, application, engine_settings
from tests.integration.conftest import CHAT, EMBED
from tests.integration.fleet import decisions
from tests.integration.prometheus import samples
from tests.integration.test_every_field import extreme_bodies
from tests.integration.test_fuzz import bounded

AT_ONCE = 32
GENERATED, EXTREME = 10, 30
"""Requests of one round: from a schema at random, and with one extreme value."""
LEAVES = 0.2
"""The share of clients that leave within `LEAVES_WITHIN_S`."""
LEAVES_WITHIN_S = 0.1
ANSWER_WITHIN_S = 60.0
REST_WITHIN_S = 30.0
AT_REST = 4
"""Readings a second apart. Metrics come up to two seconds late."""
KNOBS = {
    # No load of this test needs a second replica. Sequences that nobody waits for would.
    "max_replicas": 3,
    "ttft_target_s": 600,
    "itl_target_s": 60,
    "queue_target_per_replica": 2 * AT_ONCE,
    "headroom": 0,
}
PROCESSES = {
    "engines": ("ray::ServeReplica:tideserve:Engine", "VLLM::EngineCor"),
    "controllers": ("ray::ServeController",),
    "ingresses": ("ray::ServeReplica:tideserve:Ingress",),
}
LOST = re.compile(r"aborted (\d+) sequences that the engine core does not know")


@dataclass(frozen=True, slots=True)
class Odd:
    """A request, and what a report of it says."""

    what: str
    send: Callable[..., requests.Response]


@dataclass(slots=True)
class Seen:
    """What the clients saw."""

    statuses: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def answer(self, what: str, reply: requests.Response) -> None:
        self.statuses[f"{reply.status_code // 100}xx"] += 1
        # An error event of a stream is of the same kind as a status.
        if reply.status_code >= 500 or '"type":"server_error"' in reply.text:
            self.wrong.append(f"{what}: {reply.status_code} {reply.text[:300]}")


def odd_requests(app: Running, random_: random.Random) -> Iterator[Odd]:
    """Requests without end."""
    schema = schemathesis.openapi.from_url(f"{app.url}/openapi.json")
    operations = [operation.ok() for operation in schema.get_all_operations()]
    posts = [operation for operation in operations if operation.method.upper() == "POST"]
    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    extremes = extreme_bodies()
    for operation, mode in itertools.cycle(itertools.product(posts, modes)):
        round_ = [
            Odd(f"{case.formatted_path} {case.body!r:.300}", case.call)
            for case in cases(operation, mode, random_.getrandbits(32))
        ]
        for path, body in random_.sample(extremes, EXTREME):
            post = partial(requests.post, app.url + path, body, headers={"Content-Type": "application/json"})
            round_.append(Odd(f"{path} {body[:300]!r}", post))
        random_.shuffle(round_)
        yield from round_


def cases(operation: Any, mode: schemathesis.GenerationMode, seed: int) -> list[Any]:
    found: list[Any] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=GENERATED,
        phases=[hypothesis.Phase.generate],
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def collect(case: Any) -> None:
        case.body = bounded(case.body)
        found.append(case)

    try:
        collect()
    except hypothesis.errors.Unsatisfiable:
        assert mode is schemathesis.GenerationMode.NEGATIVE  # nothing about the request can be wrong
    return found


def flood(app: Running, seed: int, until: float) -> Seen:
    """Send odd requests until a time of the monotonic clock, and wait for their answers."""
    random_, seen = random.Random(seed), Seen()
    waiting: queue.Queue[tuple[Odd, float] | None] = queue.Queue(AT_ONCE)

    def client() -> None:
        while (taken := waiting.get()) is not None:
            odd, timeout_s = taken
            try:
                seen.answer(odd.what, odd.send(timeout=timeout_s))
            except requests.RequestException as error:
                seen.statuses["left"] += 1
                if timeout_s == ANSWER_WITHIN_S:
                    seen.wrong.append(f"{odd.what}: no answer: {error}")

    with ThreadPoolExecutor(AT_ONCE) as pool:
        clients = [pool.submit(client) for _ in range(AT_ONCE)]
        for odd in odd_requests(app, random_):
            leaves = random_.random() < LEAVES
            waiting.put((odd, random_.uniform(0.001, LEAVES_WITHIN_S) if leaves else ANSWER_WITHIN_S))
            if time.monotonic() > until:
                break
        for _ in clients:
            waiting.put(None)
        for each in clients:
            each.result()
    return seen


def good_requests(app: Running, over: threading.Event, seen: Seen) -> None:
    """Send one good request a second."""
    body = {"model": CHAT, "messages": [{"role": "user", "content": "sea"}], "max_tokens": 4}
    while not over.wait(1.0):
        reply = requests.post(f"{app.url}/v1/chat/completions", json=body, timeout=ANSWER_WITHIN_S)
        seen.answer("a good request", reply)
        if reply.status_code != 200:
            seen.wrong.append(f"a good request: {reply.status_code} {reply.text[:300]}")


def started(app: Running) -> dict[str, set[int]]:
    return {
        kind: {process.pid for title in titles for process in app.processes(title)}
        for kind, titles in PROCESSES.items()
    }


def phantom_sequences(app: Running) -> float:
    """How many sequences are counted although no client waits: still now, or until the engine noticed."""
    names = [(f"llm_{state}_requests", model) for state in ("running", "waiting") for model in (CHAT, EMBED)]
    until, readings = time.monotonic() + REST_WITHIN_S, [1.0]
    with httpx.Client(base_url=app.url, timeout=10) as http:
        while any(readings[-AT_REST:]) and time.monotonic() < until:
            time.sleep(1)
            now = samples(http)
            readings.append(sum(now.get(name, 0.0) for name in names))
    logs = (app.folder / "ray/session_latest/logs/serve").glob("replica_*Engine*.log")
    lost = sum(int(number) for log in logs for number in LOST.findall(log.read_text(errors="replace")))
    return readings[-1] + lost


@pytest.mark.long
@pytest.mark.timeout(0)
def test_flood_of_odd_bodies_is_no_load_and_ends_no_process() -> None:
    seed = int(os.environ.get("FUZZ_SEED") or secrets.randbelow(1 << 32))
    minutes = float(os.environ.get("FUZZ_MINUTES") or 5)
    small = {"max_num_seqs": 8, "kv_cache_memory_bytes": 64 << 20}
    document = application(
        engine_settings(CHAT, tool_call_parser="hermes"),
        engine_settings(EMBED, task="embed", **small),
        knobs={CHAT: KNOBS, EMBED: KNOBS},
    )
    with Running(document).serving() as app:
        before, over, good = started(app), threading.Event(), Seen()
        beside = threading.Thread(target=good_requests, args=(app, over, good))
        beside.start()
        try:
            odd = flood(app, seed, time.monotonic() + 60 * minutes)
        finally:
            over.set()
            beside.join()
        phantoms = phantom_sequences(app)
        after = started(app)
        targets = [record["new_target"] for record in decisions(app)]
    found = {f"{kind} started": len(after[kind] - before[kind]) for kind in PROCESSES}
    found |= {
        "wrong answers": len(odd.wrong) + len(good.wrong),
        "phantom sequences": phantoms,
        "replicas above one": max(targets) - 1,
    }
    report = {"seed": seed, "minutes": minutes, "odd": odd.statuses, "good": good.statuses, **found}
    print(f"\n{json.dumps(report)}", *odd.wrong[:20], *good.wrong[:20], sep="\n", flush=True)
    assert not any(found.values()), found
