import json
import os
import subprocess
import sys
from dataclasses import asdict

import psutil
import pytest

from benchmarks.serving_overhead.usage import name_of, read_usage


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("ray::ServeController", "controller"),
        ("ray::IDLE", "spare processes"),
        ("VLLM::Worker_TP0", "vLLM's worker"),
        ("ray-dashboard-ServeHead-0 (/x/bin/python -B -c ...)", "dashboard modules"),
        ("/x/bin/python -m vllm.entrypoints.openai.api_server --port 1", "vLLM's own front end"),
        ("sleep 1", "other"),
        ("/x/bin/python -m benchmarks.common.supervise 1 /x/bin/python -m serve_app.cli.main run x", None),
    ],
)
def test_every_process_of_an_application_has_a_name(title: str, name: str | None) -> None:
    assert name_of(title.split(" ")) == name


def test_usage_counts_processes_and_their_ended_children() -> None:
    gone = psutil.Popen(["true"])
    gone.wait()
    ourselves = psutil.Process(os.getpid())
    before = read_usage([ourselves, gone])
    subprocess.run([sys.executable, "-c", "for _ in range(10**6): pass"], check=True)

    used = read_usage([ourselves, gone], memory=True).since(before)

    assert used.total_s >= 0.01  # a million turns of a loop take more
    assert json.loads(json.dumps(asdict(used)))["pss_bytes"]["other"] > 1 << 20
