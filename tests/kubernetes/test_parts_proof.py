"""The pod of `helm test` that measures a GPU."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_proof.options import Options, parse
from benchmarks.gpu_proof.proof import SMOKE, STAGES
from benchmarks.gpu_proof.random_weights import SHAPES
from tests.kubernetes import kubernetes_api
from tests.kubernetes.chart import A100, LAPTOP, of_kind, ray_service
from tests.kubernetes.tools import CHART
from tools.chart.schema import PROOF_SHAPES

ON = "tests.gpuProof.enabled=true"
DIGEST = f"sha256:{'0' * 64}"
EVERYTHING = CHART / "ci/everything-values.yaml"


def _pod(values: Path, *sets: str) -> dict[str, Any]:
    [pod] = [pod for pod in of_kind("Pod", values, *sets) if pod["metadata"]["name"].endswith("-gpu-proof")]
    return pod


def _container(values: Path, *sets: str) -> dict[str, Any]:
    [container] = _pod(values, *sets)["spec"]["containers"]
    return dict(container)


def _options(values: Path, *sets: str) -> Options:
    """What the proof reads of its command line."""
    words = _container(values, *sets)["args"][2:]
    assert words[:3] == ["python", "-m", "benchmarks.gpu_proof"]
    return parse(words[3:], tuple(stage.name for stage in STAGES), SMOKE)


def _engine(values: Path, group: str) -> dict[str, Any]:
    groups = ray_service(values)["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    [spec] = [each["template"]["spec"] for each in groups if each["groupName"] == group]
    return dict(spec)


def test_the_proof_is_off_by_default() -> None:
    assert [pod["metadata"]["name"] for pod in of_kind("Pod", A100)] == ["demo-tideserve-test"]


def test_the_proof_pod_stays_for_its_log() -> None:
    pod = _pod(A100, ON)
    assert pod["metadata"]["annotations"] == {
        "helm.sh/hook": "test",
        "helm.sh/hook-delete-policy": "before-hook-creation",
    }
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["activeDeadlineSeconds"] > 1800
    assert kubernetes_api.problems(pod, "1.36") == []


def test_the_proof_runs_where_the_engines_run() -> None:
    proof, engine = _pod(EVERYTHING)["spec"], _engine(EVERYTHING, "mine")
    for key in ("nodeSelector", "tolerations", "runtimeClassName", "securityContext", "serviceAccountName"):
        assert proof[key] == engine[key], key
    limits = proof["containers"][0]["resources"]["limits"]
    assert limits == engine["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "1"
    assert proof["containers"][0]["securityContext"] == engine["containers"][0]["securityContext"]


def test_the_proof_has_one_gpu_of_the_first_gpu_profile() -> None:
    sets = (ON, 'models.big={"gpuProfile":"h100","tensor_parallel_size":8}', 'models.a={"gpuProfile":"cpu"}')
    limits = _container(A100, *sets)["resources"]["limits"]
    assert (limits["nvidia.com/gpu"], limits["memory"]) == ("1", "180Gi")
    assert _options(A100, *sets).device == "gpu"
    assert _options(A100, *sets, 'tests.gpuProof.gpuProfile="cpu"').device == "cpu"


def test_on_cpus_the_proof_needs_no_gpu() -> None:
    assert _options(LAPTOP, ON).device == "cpu"
    assert set(_container(LAPTOP, ON)["resources"]["limits"]) == {"cpu", "memory"}


def test_the_proof_writes_its_smoke_stages_to_a_volume() -> None:
    options = _options(A100, ON, "tests.gpuProof.minutes=2.5", 'tests.gpuProof.randomWeights="tiny"')
    assert options.stages == SMOKE
    assert (options.minutes, options.model, options.random_weights) == (2.5, None, "tiny")
    mounts = {mount["mountPath"]: mount["name"] for mount in _container(A100, ON)["volumeMounts"]}
    assert {"/tmp", "/home/tideserve", "/dev/shm", str(options.out)} == set(mounts)
    volumes = {volume["name"]: volume for volume in _pod(A100, ON)["spec"]["volumes"]}
    assert all("emptyDir" in volumes[name] for name in mounts.values())


def test_the_proof_uses_model_cache_and_token_of_the_engines() -> None:
    container, engine = _container(EVERYTHING), _engine(EVERYTHING, "mine")["containers"][0]
    assert _options(EVERYTHING).model == "org/small"
    assert {"name": "models", "mountPath": "/models"} in container["volumeMounts"]
    env = {item["name"]: item for item in engine["env"]}
    assert [item for item in container["env"] if env.get(item["name"]) != item] == []
    assert {"HF_HOME", "HF_TOKEN"} <= {item["name"] for item in container["env"]}


def test_random_weights_get_neither_the_cache_nor_the_token() -> None:
    container = _container(EVERYTHING, 'tests.gpuProof.model=""')
    assert "models" not in [mount["name"] for mount in container["volumeMounts"]]
    assert not {"HF_HOME", "HF_TOKEN"} & {item["name"] for item in container["env"]}


def test_the_shapes_in_the_schema_are_those_of_the_proof() -> None:
    assert set(PROOF_SHAPES) == set(SHAPES)


@pytest.mark.parametrize(
    ("sets", "image"),
    [
        ((), "registry.example/tideserve:0.1.0-proof"),
        (('image.tag="v2"',), "registry.example/tideserve:v2-proof"),
        (('tests.gpuProof.image={"repository":"a/lab","tag":"t"}',), "a/lab:t"),
        ((f'tests.gpuProof.image.digest="{DIGEST}"',), f"registry.example/tideserve@{DIGEST}"),
    ],
)  # fmt: skip
def test_the_proof_has_an_image_tag_of_its_own(sets: tuple[str, ...], image: str) -> None:
    assert _container(A100, 'image.repository="registry.example/tideserve"', ON, *sets)["image"] == image


def test_the_network_policy_isolates_the_proof() -> None:
    labels = _pod(EVERYTHING)["metadata"]["labels"]
    [policy] = of_kind("NetworkPolicy", EVERYTHING)
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    ray = policy["spec"]["egress"][0]["to"][0]["podSelector"]["matchExpressions"][0]
    assert labels[ray["key"]] not in ray["values"]
    assert policy["spec"]["egress"][2:] == [{"ports": [{"port": 443, "protocol": "TCP"}]}]


@pytest.mark.parametrize("status", [0, 1, 2])
def test_the_pod_ends_with_status_and_document_of_the_proof(tmp_path: Path, status: int) -> None:
    container = _container(A100, ON)
    script, *arguments = container["args"]
    (tmp_path / "servers").mkdir()
    (tmp_path / "servers/01.log").write_text("why the server died\n", encoding="utf-8")
    program = tmp_path / "python"
    document = "" if status == 2 else f"echo document > {tmp_path}/proof.json\n"
    program.write_text(f"#!/bin/sh\n{document}exit {status}\n")
    program.chmod(0o755)
    done = subprocess.run(
        [*container["command"], script.replace("/results", str(tmp_path)), *arguments], check=False,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == status
    assert done.stdout.split("\n")[-2:] == (["why the server died", ""] if status == 2 else ["document", ""])
    assert ("why the server died" in done.stdout) is (status != 0)
