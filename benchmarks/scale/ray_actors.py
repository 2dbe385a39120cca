"""`python -m benchmarks.scale.ray_actors`: Ray Serve's own cost by the number of replicas that do nothing.

The number doubles until a step takes longer than its limit, or the machine has little memory left.
"""

import os
import sys
import time

import psutil
import ray
from ray import serve
from ray.experimental import internal_kv
from ray.util import list_named_actors

from benchmarks.common.markdown import table

_STEP_LIMIT_S = 150.0
_LEAST_FREE = 4 << 30
_WATCH_S = 10.0
_NAMES = {
    "controller": "ServeController",
    "GCS": "gcs_server",
    "raylet": "raylet/raylet",
    "dashboard agent": "agent",
}


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Idle:
    """Does nothing."""

    def __call__(self) -> str:
        """Answer."""
        return ""


def _cpu_s() -> dict[str, float]:
    """Return the CPU seconds of Ray's processes that this process has started, by their part."""
    used = dict.fromkeys(_NAMES, 0.0)
    for process in psutil.Process().children(recursive=True):
        try:
            line = " ".join(process.cmdline())
            times = process.cpu_times()
        except psutil.Error:
            continue
        for name, part in _NAMES.items():
            if part in line:
                used[name] += times.user + times.system
                break
    return used


def _watch(replicas: int, started_s: float) -> list[str]:
    before, begun = _cpu_s(), time.monotonic()
    time.sleep(_WATCH_S)
    passed = time.monotonic() - begun
    shares = [f"{100 * (used - before[name]) / passed:.1f}" for name, used in _cpu_s().items()]
    workers = [
        each
        for each in psutil.Process().children(recursive=True)
        if "ServeReplica" in "".join(each.cmdline())
    ]
    private = sorted(each.memory_full_info().uss for each in workers)
    keys = [f"scale/{number}".encode() for number in range(replicas)]
    for key in keys:
        internal_kv._internal_kv_put(key, b"." * 400, overwrite=True, namespace=b"scale")
    begun = time.perf_counter()
    for key in keys:
        internal_kv._internal_kv_get(key, namespace=b"scale")
    single = time.perf_counter() - begun
    begun = time.perf_counter()
    internal_kv.internal_kv_get_gcs_client().internal_kv_multi_get(keys, b"scale")
    many = time.perf_counter() - begun
    begun = time.perf_counter()
    list_named_actors(all_namespaces=True)
    listed = time.perf_counter() - begun
    memory = private[len(private) // 2] / (1 << 20) if private else 0.0
    return [
        str(replicas), f"{started_s:.0f}", *shares, f"{memory:.0f}",
        *(f"{1e3 * each:.1f}" for each in (single, many, listed)),
    ]  # fmt: skip


def main() -> int:
    """Print the table."""
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    rows, replicas, why = [], 4, ""
    while not why:
        begun = time.monotonic()
        try:
            serve.run(Idle.options(num_replicas=replicas).bind(), name="scale", _blocking=False)
            while len(
                ray.get(_controller().get_deployment_details.remote("scale", "Idle")).replicas
            ) < replicas or any(
                each.state.value != "RUNNING"
                for each in ray.get(_controller().get_deployment_details.remote("scale", "Idle")).replicas
            ):
                if time.monotonic() - begun > _STEP_LIMIT_S:
                    why = f"{replicas} replicas did not run within {_STEP_LIMIT_S:.0f} s"
                    break
                time.sleep(1.0)
        except Exception as error:  # the table so far is worth printing
            why = f"{replicas} replicas: {error}"
        if why:
            break
        rows.append(_watch(replicas, time.monotonic() - begun))
        print(" ".join(rows[-1]), file=sys.stderr, flush=True)
        if psutil.virtual_memory().available < _LEAST_FREE:
            why = "less than 4 GiB of memory are left"
        replicas *= 2
    header = ["replicas", "s to start", *(f"{name}, % of a core" for name in _NAMES), "MiB of each replica"]
    print(table([*header, "ms: N single reads of the GCS", "ms: one read of N", "ms: list of actors"], rows))
    print(f"\nIt ended because {why}.")
    ray.shutdown()
    return 0


def _controller() -> ray.actor.ActorHandle:
    return ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")


if __name__ == "__main__":
    sys.exit(main())
