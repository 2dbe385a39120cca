"""vLLM's executors on claimed GPUs: where their workers run, from which zygote, and what is left of them."""

import os
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray import serve
from ray.cluster_utils import Cluster

from serve_app import env
from serve_app.app import build_application
from serve_app.cluster.placement import engine_environment, placement
from serve_app.settings.load import knob_defaults, load_settings
from serve_app.settings.tree import ModelSettings
from tests.integration.fake_gpu_engine import FakeGpuEngine

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

RUNTIME = {"env_vars": {"PYTHONPATH": os.fspath(Path(__file__).parents[2])}}
MODEL: dict[str, Any] = {
    "name": "m",
    "model": "embedded",
    "accelerator_type": None,
    "enforce_eager": True,
    "max_model_len": 512,
    "kv_cache_memory_bytes": 64 << 20,
    "tensor_parallel_size": 2,
    "env": {"VLLM_CPU_OMP_THREADS_BIND": "nobind"},  # else each worker needs a NUMA node of its own
}
STARTS = 20
FREED_S = 60.0


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the cluster's sessions."""
    monkeypatch.setenv("RAY_process_group_cleanup_enabled", env.ALWAYS["RAY_process_group_cleanup_enabled"])
    made = Path(tempfile.mkdtemp(prefix="ts-", dir="/tmp"))
    monkeypatch.setenv("RAY_TMPDIR", os.fspath(made))
    (made / "ray").mkdir()
    return made / "ray"


@pytest.fixture
def one_node(folder: Path) -> Iterator[Path]:
    ray.init(
        address="local", num_cpus=4, num_gpus=4, include_dashboard=False, log_to_driver=False,
        runtime_env=RUNTIME,
    )  # fmt: skip
    yield folder
    ray.shutdown()


@pytest.fixture
def two_nodes(folder: Path) -> Iterator[Path]:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "num_gpus": 2})
    cluster.add_node(num_cpus=4, num_gpus=2)
    ray.init(address=cluster.address, log_to_driver=False, runtime_env=RUNTIME)
    yield folder
    serve.shutdown()  # else a thread of its router connects anew
    ray.shutdown()
    cluster.shutdown()


def zygotes(folder: Path) -> list[str]:
    """The sockets of all zygotes of the session."""
    found = (folder / "session_latest" / "sockets").glob("zygote-*")
    return [path.name for path in found if path.suffix != ".lock"]


def shared_memory(processes: list[psutil.Process]) -> set[Path]:
    paths = (each.path for process in processes for each in process.memory_maps())
    return {Path(path.removesuffix(" (deleted)")) for path in paths if path.startswith("/dev/shm/psm_")}


def start() -> Any:
    model = ModelSettings.model_validate(MODEL)
    options = placement(model)["ray_actor_options"]
    actor = ray.remote(FakeGpuEngine).options(**options, runtime_env=engine_environment(model, zygote=True))
    return actor.remote(model.model_dump(mode="json"))


def test_twenty_starts_leave_one_zygote_and_nothing_else(one_node: Path) -> None:
    descriptors = set()
    for number in range(STARTS):
        replica = start()
        where, workers = ray.get(replica.where.remote()), ray.get(replica.start_workers.remote())
        assert [one["rank"] for one in workers] == [0, 1]
        assert {one["visible"] for one in workers} == {",".join(where["gpu_ids"])}
        own = psutil.Process(where["process"])
        others = [*own.children(recursive=True), *(psutil.Process(one["process"]) for one in workers)]
        memory = shared_memory(others)
        if number % 2:
            assert ray.get(replica.stop_workers.remote()) == 0
            ray.kill(replica)
        else:
            own.send_signal(signal.SIGKILL)

        assert psutil.wait_procs([own, *others], timeout=FREED_S)[1] == []
        assert len(memory) == 3  # the calls of the engine core, and the answers of each worker
        assert [path for path in memory if path.exists()] == []
        assert len(zygotes(one_node)) == 1
        [zygote] = {one["zygote"] for one in workers}
        descriptors.add(psutil.Process(zygote).num_fds())
        assert psutil.Process(zygote).children() == []
    assert len(descriptors) == 1


def test_each_stage_of_a_pipeline_has_a_node(two_nodes: Path) -> None:
    args = {"models": [MODEL | {"pipeline_parallel_size": 2, "placement_group_strategy": "PACK"}]}
    settings = load_settings(args)
    serve.run(
        build_application(settings, knob_defaults(args), FakeGpuEngine), name="stages", route_prefix="/stages"
    )
    handle = serve.get_deployment_handle(settings.models[0].deployment_name, "stages")
    where = handle.where.remote().result(timeout_s=120)
    assert [bundle["GPU"] for bundle in where["bundles"]] == [1, 1, 1, 1]

    workers = handle.start_workers.remote().result(timeout_s=300)

    ranks, gpus = defaultdict(list), defaultdict(set)
    for one in workers:
        ranks[one["node"]].append(one["rank"])
        gpus[one["node"]].add(tuple(one["gpus_of_node"]))
    assert list(ranks.values()) == [[0, 1], [2, 3]]
    assert next(iter(ranks)) == where["node"]
    assert list(gpus.values()) == [{(0, 1)}, {(0, 1)}]
    # The engine core opened a Ray job of its own. Only the replica's job has a zygote.
    assert len(zygotes(two_nodes)) == 1
    assert {one["zygote"] for one in workers} == {None}

    processes = [psutil.Process(one["process"]) for one in workers]
    memory = shared_memory(processes)
    os.kill(where["process"], signal.SIGKILL)
    assert psutil.wait_procs(processes, timeout=FREED_S)[1] == []
    assert [path for path in memory if path.exists()] == []
    serve.delete("stages")
    end = time.monotonic() + FREED_S
    while ray.available_resources().get("GPU") != 4:
        assert time.monotonic() < end, ray.available_resources()
        time.sleep(0.1)
