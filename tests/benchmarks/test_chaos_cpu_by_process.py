import os
import subprocess
import sys

import psutil
import pytest
from benchmarks.chaos.cpu_by_process import name_of, read


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("ray::ServeController", "controller"),
        ("ray::IDLE", "spare processes"),
        ("ray-dashboard-ServeHead-0 (/x/bin/python -B -c ...)", "dashboard modules"),
        ("/x/bin/python -u /x/ray/_private/log_monitor.py --session-dir=/tmp/ray", "log-monitor"),
        ("/x/bin/python -u /x/ray/autoscaler/v2/monitor.py --logs-dir=/tmp/ray", "autoscaler"),
        ("VLLM::Grammars", "grammars"),
        ("/x/bin/python -m vllm.entrypoints.openai.api_server --port 1", "vLLM's own front end"),
        ("sleep 1", "other"),
        ("/x/bin/python -m benchmarks.common.supervise 1 /x/bin/python -m serve_app.cli.main run x", None),
    ],
)
def test_every_process_of_an_application_has_a_name(title: str, name: str | None) -> None:
    assert name_of(title.split(" ")) == name


def test_a_reading_counts_what_processes_and_their_ended_children_use() -> None:
    gone = psutil.Popen(["true"])
    gone.wait()
    ourselves = psutil.Process(os.getpid())
    before = read([ourselves, gone])
    subprocess.run([sys.executable, "-c", "for _ in range(10**6): pass"], check=True)

    used = read([ourselves, gone]).since(before, scale=2.0)

    assert used.count == {"other": 1}
    assert used.total_s >= 0.02  # a million turns of a loop take more than 0.01 s
