"""`tideserve loadtest` with a server of its own: from zero to a replica and back, judged by what it saw."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import yaml

from tests.integration.cluster import application, engine_settings

MODEL = "tideserve-tiny"
KNOBS = {
    "min_replicas": 0,
    "max_replicas": 2,
    "queue_target_per_replica": 4,
    "ttft_target_s": 0.5,
    "itl_target_s": 0.2,
    "downscale_delay_s": 12,  # longer than the one replica may come up after the other
    "downscale_to_zero_delay_s": 3,
}
SCENARIO = {
    "name": "there-and-back",
    "arrivals": [
        {"shape": "burst", "for_s": 1, "requests": 8},
        {"shape": "steady", "for_s": 4, "rate": 3},
    ],
    "requests": [
        {"kind": "stays", "share": 3, "prompt_tokens": 40, "output_tokens": 20},
        {"kind": "leaves", "output_tokens": 200, "leave": {"share": 1, "after_tokens": 5}},
    ],
    "slos": {
        "ttft_ms": {"p99": 110_000},
        "cold_wait_s": {"p99": 110},
        "itl_ms": {"p50": 500},
        "hundred_tokens_s": None,
        "error_rate": 0.01,
    },
    "scaling": {"starts_at": 0, "reaches": 2, "returns_to": 0, "within_s": 90},
    "client": {"lag_p99_ms": 500, "lag_max_ms": 5000},
}


def test_a_cold_burst_is_held_scaled_for_answered_and_judged(tmp_path: Path) -> None:
    config, scenario, out = tmp_path / "serve.yaml", tmp_path / "scenario.yaml", tmp_path / "out"
    config.write_text(yaml.safe_dump(application(engine_settings(MODEL), knobs={MODEL: KNOBS})))
    scenario.write_text(yaml.safe_dump(SCENARIO))
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-m", "serve_app.cli.main", "loadtest", str(scenario)]

    done = subprocess.run(
        [*command, "--serve", str(config), "--out", str(out)],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    log = (out / "server.log").read_text(errors="replace")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{log[-4000:]}"
    assert done.stdout.startswith("Passed: ")
    document = json.loads((out / "run.json").read_text())
    outcomes = {request["outcome"] for request in document["requests"] if request["kind"] == "stays"}
    assert outcomes == {"answered"}
    assert {r["outcome"] for r in document["requests"] if r["kind"] == "leaves"} == {"left"}
    held = [request for request in document["requests"] if request["cold_wait_s"] > 0.5]
    assert len(held) >= 8
    assert any(phase for request in held for _, phase in request["phases"])
    [fleet] = document["summary"]["fleets"]
    assert fleet["peak_ready"] == 2
    assert {decision["model"] for decision in document["decisions"]} == {MODEL}
    assert (
        "<svg" in (out / "report.html").read_text() or "createElementNS" in (out / "report.html").read_text()
    )
    # The server was stopped in order, and nothing of it is left.
    assert "stopped; 0 processes had to be killed" in log
