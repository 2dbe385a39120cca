"""`python -m benchmarks.scale.ray_actors`: Ray Serve's own cost by the number of replicas that do nothing.

The number doubles until a step takes longer than its limit, or the machine has little memory left.
"""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from statistics import median
from typing import Any

import psutil
import ray
from ray import serve
from ray._private import services
from ray.experimental import internal_kv
from ray.util import list_named_actors

from benchmarks.common.markdown import table

_STEP_LIMIT_S = 120.0
_LEAST_FREE = 4 << 30
_WATCH_S = 10.0
_PARTS = {"ServeController": "controller", "gcs_server": "GCS", "raylet/raylet": "raylet"}


class Idle:
    """Does nothing."""

    def __call__(self) -> str:
        """Answer."""
        return ""


def _processes() -> Any:
    return psutil.Process().children(recursive=True)


def _cpu_s() -> list[float]:
    """Return the CPU seconds of each of Ray's parts."""
    used = dict.fromkeys(_PARTS, 0.0)
    for process in _processes():
        with suppress(psutil.Error):
            line, times = " ".join(process.cmdline()), process.cpu_times()
            if (part := next((part for part in _PARTS if part in line), None)) is not None:
                used[part] += times.user + times.system
    return [*used.values()]


def _ms(work: Callable[[], object]) -> str:
    begun = time.perf_counter()
    work()
    return f"{1e3 * (time.perf_counter() - begun):.1f}"


def _watch(replicas: int) -> list[str]:
    before, begun = _cpu_s(), time.monotonic()
    time.sleep(_WATCH_S)
    passed = time.monotonic() - begun
    shares = [f"{100 * (now - then) / passed:.1f}" for now, then in zip(_cpu_s(), before, strict=True)]
    private = [
        each.memory_full_info().uss for each in _processes() if "ServeReplica" in "".join(each.cmdline())
    ]
    keys = [f"scale/{number}".encode() for number in range(replicas)]
    for key in keys:
        internal_kv._internal_kv_put(key, b"." * 400, overwrite=True, namespace=b"scale")
    client = internal_kv.internal_kv_get_gcs_client()
    times = (
        _ms(lambda: [internal_kv._internal_kv_get(key, namespace=b"scale") for key in keys]),
        _ms(lambda: client.internal_kv_multi_get(keys, b"scale")),
        _ms(lambda: list_named_actors(all_namespaces=True)),
    )
    return [*shares, f"{median(private) / (1 << 20):.0f}", *times]


def _patient(ask: Callable[..., Any]) -> Callable[..., Any]:
    def asked(*args: Any) -> Any:
        for _ in range(120):
            with suppress(RuntimeError):
                return ask(*args)
            time.sleep(1.0)
        return ask(*args)

    return asked


def main() -> int:
    """Print the table."""
    services.get_node = _patient(services.get_node)  # a busy machine takes longer than Ray's 30 s
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    rows, replicas, why = [], 4, ""
    while not why:
        begun = time.monotonic()
        serve.run(
            serve.deployment(Idle, num_replicas=replicas, ray_actor_options={"num_cpus": 0}).bind(),
            name="scale",
        )
        started_s = time.monotonic() - begun
        rows.append([str(replicas), f"{started_s:.0f}", *_watch(replicas)])
        print(" ".join(rows[-1]), file=sys.stderr, flush=True)
        if psutil.virtual_memory().available < _LEAST_FREE:
            why = "less than 4 GiB of memory are left"
        elif started_s > _STEP_LIMIT_S:
            why = f"the last step took more than {_STEP_LIMIT_S:.0f} s"
        replicas *= 2
    header = [
        "replicas",
        "s to start",
        *(f"{name}, % of a core" for name in _PARTS.values()),
        "MiB of a replica",
    ]
    print(table([*header, "ms: N reads of the GCS", "ms: one read of N", "ms: list of actors"], rows))
    print(f"\nIt ended because {why}.")
    ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
