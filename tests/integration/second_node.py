"""A second node of a running application: another raylet on this machine, as KubeRay starts a pod."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil

from serve_app import env
from serve_app.cli.listening import free_port
from tests.integration.cluster import START_TIMEOUT_S, Running, command_line
from tests.integration.listeners import role_of

RAY = """
from ray._private import ray_constants, services
from ray.scripts.scripts import main
from serve_app.processes import adopt_orphans
adopt_orphans()
services.get_node_ip_address = lambda *_: "127.0.0.1"
ray_constants.ENABLE_RAY_CLUSTER = True
main()
"""
"""`ray` as the first process of a pod, below which all processes of its node stay.

Ray refuses a second node where the first has 127.0.0.1 as its address, as `tideserve run` has it.
"""


@contextmanager
def second_node(running: Running, resources: dict[str, float]) -> Iterator[Callable[[], None]]:
    """Add a node with one CPU and `resources`. Yields what kills all of its processes at once."""
    found = {role_of(process): process for process in running.descendants()}
    values = {
        name: value for name, value in found["Serve's driver"].environ().items() if name != env.RAY_RESOURCES
    }
    gcs = re.search(r"--gcs-address=(\S+)", command_line(found["raylet"]))
    assert gcs is not None
    options: dict[str, object] = {
        "address": gcs[1],
        "node-ip-address": "127.0.0.1",
        "num-cpus": 1,
        "resources": json.dumps(resources),
        "object-store-memory": 100 << 20,
        "dashboard-agent-listen-port": free_port(),
        "min-worker-port": 21000,  # by default both raylets would give their workers the same ports
        "max-worker-port": 21199,
    }
    command = [sys.executable, "-c", RAY, "start", "--block", "--disable-usage-stats"]
    command += [f"--{option}={value}" for option, value in options.items()]
    log = running.folder / "second_node.log"
    with log.open("wb") as out:
        leader = subprocess.Popen(command, env=values, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while "Ray runtime started" not in log.read_text(errors="replace"):
            assert leader.poll() is None, log.read_text(errors="replace")[-4000:]
            assert time.monotonic() < deadline, log.read_text(errors="replace")[-4000:]
            time.sleep(0.1)
        yield lambda: _kill(leader)
    finally:
        _kill(leader)


def _kill(leader: subprocess.Popen[bytes]) -> None:
    if leader.poll() is None:
        tree = psutil.Process(leader.pid)
        for process in [*tree.children(recursive=True), tree]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        leader.wait(30)
