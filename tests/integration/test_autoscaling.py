"""One application from zero to three replicas and back, through every knob: real engines, real Ray.

The tests share the application and run in order; each says in what state it leaves the fleet.
"""

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from serve_app.cli.main import main
from serve_app.settings.knobs import Knobs
from tests.integration.cluster import Running
from tests.integration.fleet import (
    ENGINES,
    KNOBS,
    MODEL,
    WAIT_S,
    changes,
    chat,
    decisions,
    held_requests,
    is_whole,
    knobs_in_force,
    newest,
    set_knobs,
    status,
    streamed,
    until,
    until_ready,
    with_knobs,
)
from tests.integration.raising_policy import MARK
from tests.integration.sse import RawStream

LONG = 1200  # tokens: 6 s for three streams on three engines and two quiet cores


async def burst(fleet: Running, requests: int) -> list[str]:
    """So many streams at once, over connections of one client."""
    async with httpx.AsyncClient(timeout=WAIT_S) as client:
        url = f"{fleet.url}/v1/chat/completions"
        replies = await asyncio.gather(
            *(client.post(url, json=chat(f"Count to {number}.", 16)) for number in range(requests))
        )
    assert {reply.status_code for reply in replies} == {200}
    return [reply.text for reply in replies]


@contextmanager
def streaming(fleet: Running, streams: int, max_tokens: int) -> Iterator[list[str]]:
    """Streams that follow one another until the block ends; what they were is checked by the caller."""
    done = threading.Event()
    seen: list[str] = []

    def one(number: int) -> None:
        while not done.is_set():
            seen.append(streamed(fleet, f"Tell me about the sea, part {number}.", max_tokens))

    with ThreadPoolExecutor(streams) as pool:
        running = [pool.submit(one, number) for number in range(streams)]
        try:
            yield seen
        finally:
            done.set()
            for each in running:
                each.result(WAIT_S)


def test_a_client_that_leaves_a_cold_application_leaves_the_queue(fleet: Running) -> None:
    """At zero; in `advise`, so that nothing starts meanwhile."""
    set_knobs(fleet, "mode=advise")
    with RawStream(fleet.port, "/v1/chat/completions", chat("hi", 4)) as stream:
        stream.until(b": waiting for a replica")
        until(lambda: held_requests(fleet), lambda held: held == 1, "a held request")
    until(lambda: held_requests(fleet), lambda held: held == 0, "an empty queue")
    assert status(fleet)["target"] == 0


def test_advise_records_what_it_would_do_and_does_nothing(fleet: Running) -> None:
    before = newest(fleet)
    set_knobs(fleet, "cold_wait_timeout_s=3", "max_held_requests=1", "keep_alive_interval_s=60")
    url = f"{fleet.url}/v1/chat/completions"
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(httpx.post, url, json=chat("hi", 4), timeout=60)
        until(lambda: held_requests(fleet), lambda held: held == 1, "a held request")
        refused = httpx.post(url, json=chat("hi", 4, stream=False), timeout=60)
        late = held.result(60)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
    assert (late.status_code, late.json()["error"]["code"]) == (503, "cold_wait_timeout")
    assert int(refused.headers["retry-after"]) >= 1
    assert int(late.headers["retry-after"]) >= 1
    advised = [record for record in decisions(fleet, before) if record["wanted"] == 1]
    assert advised
    assert {clamp["name"] for clamp in advised[-1]["clamps"]} >= {"mode"}
    until(lambda: held_requests(fleet), lambda held: held == 0, "an empty queue")
    assert changes(fleet, before) == []
    assert fleet.processes(ENGINES) == []
    set_knobs(
        fleet, "mode=act", "cold_wait_timeout_s=600", "max_held_requests=1000", "keep_alive_interval_s=1"
    )


def test_a_burst_at_zero_gets_its_replicas_in_one_step(fleet: Running) -> None:
    """Leaves three replicas."""
    before = newest(fleet)
    texts = asyncio.run(burst(fleet, 24))
    assert [is_whole(text) for text in texts] == [True] * 24
    assert all(text.startswith(": waiting for a replica of tide: phase=") for text in texts)
    assert changes(fleet, before) == [(0, 3)]
    up = next(record for record in decisions(fleet, before) if record["new_target"] == 3)
    assert up["binding"] == "queue"
    until_ready(fleet, 3)


def test_a_cold_start_has_measured_its_phases(fleet: Running) -> None:
    now = status(fleet)
    phases = ["process", "imports", "configuration", "weights_and_kv_cache", "serving_layer", "warm_up"]
    assert list(now["phases_s"])[:6] == phases
    assert now["cold_start_s"] == pytest.approx(sum(now["phases_s"].values()), rel=0.5)


CHANGED = [
    "mode=advise",
    "min_replicas=1",
    "max_replicas=4",
    "ttft_target_s=4.5",
    "ttft_percentile=99",
    "itl_target_s=0.9",
    "queue_target_per_replica=9",
    "slo_attainment=0.98",
    "min_on_demand=1",
    "share_weight=2",
    "canary={errors: 0.02, streams: end}",
    "turn_s=300",
    "headroom=0.1",
    "upscale_delay_s=6",
    "downscale_delay_s=500",
    "downscale_to_zero_delay_s=500",
    "drain_move_after_s=4",
    "forecast=false",
    "forecast_quantile=0.8",
    "forecast_window_s=900",
    'schedules=[{start: "00:00", end: "00:01", min_replicas: 1}]',
    "starting_values=@l4",
    "standard_share=0.3",
    "aliases=[ebb, flow-*]",
    "background_wakes=true",
    "background_keep_s=500",
    "background_backlog_s=3600",
    'background_hours=[{start: "00:00", end: "00:01"}]',
    "background_wait_timeout_s=599",
    "background_deadlines=true",
    "batch_concurrency=10",
    "prefill_groups=false",
    "max_held_requests=999",
    "cold_wait_timeout_s=599",
    "keep_alive_interval_s=2",
]


def test_every_knob_changes_under_streams_without_a_restart(
    fleet: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    """Still three replicas; the knobs are as before."""
    # `adapters` needs engines with LoRA; `test_adapters` has them.
    assert {setting.partition("=")[0] for setting in CHANGED} == set(Knobs.model_fields) - {"adapters"}
    everyone = sorted(process.pid for process in fleet.processes("ray::ServeReplica"))
    with streaming(fleet, 1, 400) as texts:
        set_knobs(fleet, *CHANGED)
        fleet.deploy(fleet.document)  # an edited file, here with what it said at first
        until(lambda: knobs_in_force(fleet), lambda now: now | KNOBS == now, "the knobs of the file")
    assert texts
    assert [is_whole(text) for text in texts] == [True] * len(texts)
    assert sorted(process.pid for process in fleet.processes("ray::ServeReplica")) == everyone
    until(lambda: status(fleet)["mode"], lambda mode: mode == "act", "the mode of the file")
    until_ready(fleet, 3)


def test_a_policy_that_raises_keeps_its_target_and_says_so(fleet: Running) -> None:
    """Still three replicas; that it decides again afterwards is seen by the next test."""
    mark = Path(fleet.environment[MARK])
    before = newest(fleet)
    mark.touch()
    try:
        errors = until(
            lambda: [record for record in decisions(fleet, before) if record["kind"] == "error"],
            lambda found: len(found) > 0,
            "an error record",
        )
        assert "made to raise" in errors[0]["reason"]
        assert is_whole(streamed(fleet, "Go on.", 16))
        assert (status(fleet)["target"], status(fleet)["ready"]) == (3, 3)
    finally:
        mark.unlink()


def test_scaling_down_during_long_streams_moves_them_and_breaks_none(fleet: Running) -> None:
    """Leaves one replica.

    Streams follow one another on every replica until the drain is seen, however long a deploy takes here:
    the ones that count began before the step and outlived the first sight of the drain.
    """
    before = newest(fleet)
    lanes = 3  # one on each replica
    begun = threading.Barrier(lanes + 1, timeout=WAIT_S)
    seen_draining = threading.Event()
    streams: list[tuple[float, float, str]] = []  # begun at, ended at, what was read

    def follow_one_another(number: int) -> None:
        first = True
        while first or not seen_draining.is_set():
            chunks: list[bytes] = []
            started = time.time()
            body = chat(f"A long story, please: {number}.", LONG)
            with httpx.stream("POST", f"{fleet.url}/v1/chat/completions", json=body, timeout=WAIT_S) as reply:
                for chunk in reply.iter_raw():
                    if first:
                        begun.wait()
                        first = False
                    chunks.append(chunk)
            streams.append((started, time.time(), b"".join(chunks).decode()))

    with ThreadPoolExecutor(lanes) as pool:
        running = [pool.submit(follow_one_another, number) for number in range(lanes)]
        try:
            begun.wait()
            fleet.deploy(with_knobs(fleet, max_replicas=1))
            until(lambda: changes(fleet, before), lambda seen: seen == [(3, 1)], "the step from 3 to 1")
            step = next(record for record in decisions(fleet, before) if record["new_target"] == 1)
            # A replica without a stream is drained at once, perhaps between two looks at the status.
            until(
                lambda: (status(fleet)["draining"], len(fleet.processes(ENGINES))),
                lambda seen: seen[0] > 0 or seen[1] < lanes,
                "a drain",
            )
            drained_at = time.time()
        finally:
            seen_draining.set()
        for lane in running:
            lane.result(WAIT_S)
    assert [is_whole(text) for _, _, text in streams] == [True] * len(streams)
    lived = [text for began, ended, text in streams if began < step["at"] and ended > drained_at]
    assert lived, "none lived through it"
    assert any(": continued on another replica" in text for text in lived), "none was moved"
    until_ready(fleet, 1)


def test_a_replica_killed_while_scaling_is_made_up_for(fleet: Running) -> None:
    """Leaves two replicas."""
    (only,) = until(lambda: fleet.processes(ENGINES), lambda found: len(found) == 1, "the end of the drain")
    set_knobs(fleet, "max_replicas=2", "min_replicas=2")
    until(lambda: len(fleet.processes(ENGINES)), lambda count: count == 2, "a second replica's process")
    os.kill(only.pid, signal.SIGKILL)
    assert is_whole(streamed(fleet, "Are you there?", 16))  # held until a replica is up
    until_ready(fleet, 2)
    assert only.pid not in [process.pid for process in fleet.processes(ENGINES)]


def test_an_idle_application_goes_to_zero(fleet: Running, capsys: pytest.CaptureFixture[str]) -> None:
    """Leaves none."""
    before = newest(fleet)
    set_knobs(fleet, "min_replicas=0", "downscale_delay_s=1", "downscale_to_zero_delay_s=1")
    until_ready(fleet, 0)
    assert changes(fleet, before)[-1][1] == 0
    until(lambda: fleet.processes(ENGINES), lambda left: left == [], "the end of the engines' processes")
    assert fleet.ready()[0] == 200
    capsys.readouterr()
    assert main(["explain", "--url", fleet.url]) == 0
    said = capsys.readouterr().out
    assert MODEL in said
    assert "The target rises at the first request." in said


def test_the_policy_s_metrics_are_in_the_exposition(fleet: Running) -> None:
    # A node's agent that does not answer in time is left out of the exposition.
    text = until(
        lambda: httpx.get(f"{fleet.url}/metrics", timeout=10).text,
        lambda text: "# lost node" not in text,
        "an exposition with all nodes",
    )
    for name in ("wanted", "target", "ready", "starting", "pending", "draining"):
        assert f"llm_autoscaling_{name}_replicas{{" in text
    assert "llm_autoscaling_binding" in text
    assert "llm_held_requests" in text


def test_each_change_is_one_structured_line_in_the_log(fleet: Running) -> None:
    lines = [
        line.partition("autoscaling decision ")[2]
        for log in fleet.folder.rglob("controller_*.log")
        for line in log.read_text(errors="replace").splitlines()
        if "autoscaling decision " in line
    ]
    # A file for each controller: on a busy machine Ray's may have been restarted.
    records = sorted(map(json.loads, lines), key=lambda record: record["at"])
    moves = [(record["old_target"], record["new_target"]) for record in records if record["mode"] == "act"]
    assert moves[:2] == [(0, 3), (3, 1)]
    assert all(record["reason"] and record["counterfactual"] and record["terms"] for record in records)
