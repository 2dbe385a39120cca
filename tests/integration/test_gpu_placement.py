"""Placement on GPUs, on a Ray cluster that only claims to have them; no engine runs."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import serve

from serve_app.app import build_application
from serve_app.settings.load import knob_defaults, load_settings
from tests.integration.fake_gpu_engine import FakeGpuEngine

REPOSITORY = Path(__file__).parents[2]


pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def fake_gpus() -> Iterator[None]:
    ray.init(
        address="local",
        num_cpus=8,
        num_gpus=5,
        resources={"accelerator_type:A100": 5, "gpu-profile": 5},
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=tempfile.mkdtemp(prefix="ts-", dir="/tmp"),
        runtime_env={"env_vars": {"PYTHONPATH": os.fspath(REPOSITORY)}},
    )
    yield
    serve.shutdown()
    ray.shutdown()


def placed(model: dict[str, Any]) -> dict[str, Any]:
    # Nothing here imports vLLM, so no zygote has to either.
    args = {"models": [{"name": "m", "model": "org/any", **model}], "zygote": False}
    settings = load_settings(args)
    application = build_application(settings, knob_defaults(args), FakeGpuEngine)
    serve.run(application, name="placement", route_prefix="/placement")
    try:
        # Without our policy Ray's own starts a replica, from zero, for the request that waits for one.
        handle = serve.get_deployment_handle(settings.models[0].deployment_name, "placement")
        where: dict[str, Any] = handle.where.remote().result(timeout_s=60)
        return where
    finally:
        serve.delete("placement")


@pytest.mark.usefixtures("fake_gpus")
def test_one_gpu_is_the_replicas_own() -> None:
    where = placed({"accelerator_type": "A100", "resources": {"gpu-profile": 2}})
    assert where["assigned"]["GPU"] == 1
    assert where["assigned"]["accelerator_type:A100"] > 0
    assert where["assigned"]["gpu-profile"] == 2
    assert len(where["gpu_ids"]) == 1


@pytest.mark.usefixtures("fake_gpus")
def test_gpus_of_one_node_are_the_replicas_own() -> None:
    where = placed({"accelerator_type": "A100", "tensor_parallel_size": 2, "pipeline_parallel_size": 2})
    assert where["assigned"]["GPU"] == 4
    assert where["assigned"]["accelerator_type:A100"] > 0
    assert len(where["gpu_ids"]) == 4
    assert where["bundles"] is None


@pytest.mark.usefixtures("fake_gpus")
def test_gpus_of_several_nodes_have_a_bundle_each() -> None:
    where = placed(
        {
            "accelerator_type": "A100",
            "tensor_parallel_size": 4,
            "placement_group_strategy": "PACK",
            "resources": {"gpu-profile": 1},
        }
    )
    assert [bundle["GPU"] for bundle in where["bundles"]] == [1, 1, 1, 1]
    assert all(bundle["accelerator_type:A100"] > 0 for bundle in where["bundles"])
    for name in ("CPU", "gpu-profile"):
        assert [name in bundle for bundle in where["bundles"]] == [True, False, False, False]
    assert where["strategy"] == "PACK"
    # The GPUs are left to vLLM's workers, one a bundle.
    assert where["gpu_ids"] == []
    assert where["assigned"] == {"CPU": 1, "gpu-profile": 1}
