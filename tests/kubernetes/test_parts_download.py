"""The claim for weights and the Jobs that fill it."""

import json
from typing import Any

from serve_app import env
from tests.kubernetes.chart import LAPTOP, of_kind, ray_service
from tests.kubernetes.tools import CHART

CLAIM = 'modelCache={"type":"pvc"}'
MODELS = {
    "a": {
        "gpuProfile": "cpu",
        "model": "org/a",
        "revision": "r1",
        "tokenizer": "org/t",
        "engine_args": {"speculative_config": {"model": "org/draft", "num_speculative_tokens": 2}},
    },
    "b": {"gpuProfile": "cpu", "model": "org/a", "revision": "r1"},
    "c": {"gpuProfile": "cpu", "model": "/models/own"},
    "d": {"gpuProfile": "cpu", "model": "s3://bucket/d"},
    "e": {"gpuProfile": "cpu", "model": "embedded"},
}
MANY = f"models={json.dumps(MODELS)}"
ROOM = "gpuProfiles.cpu.maxWorkers=9"


def _job(*sets: str) -> dict[str, Any]:
    [job] = of_kind("Job", LAPTOP, *sets)
    return job


def _container(job: dict[str, Any]) -> dict[str, Any]:
    [container] = job["spec"]["template"]["spec"]["containers"]
    return dict(container)


def test_hub_models_are_downloaded_once_with_tokenizer_and_draft() -> None:
    container = _container(_job(CLAIM, ROOM, MANY))
    assert container["command"] == ["python", "-m", "serve_app.weights.download"]
    assert container["args"] == ["--tokenizer=org/t@r1", "org/a@r1", "org/draft"]


def test_without_hub_models_there_is_no_job() -> None:
    assert of_kind("Job", LAPTOP, CLAIM) == []
    assert of_kind("Job", LAPTOP, 'models.tiny.model="org/a"') == []


def test_the_job_name_follows_the_contents_of_the_job() -> None:
    base = [CLAIM, 'models.tiny.model="org/a"']
    name = _job(*base)["metadata"]["name"]
    for unrelated in ("models.tiny.autoscaling.headroom=1", "monitoring.podMonitor.enabled=true"):
        assert _job(*base, unrelated)["metadata"]["name"] == name
    for related in (
        'models.tiny.revision="x"',
        'image.tag="v2"',
        'modelCache.preDownload.nodeSelector={"a":"b"}',
    ):
        assert _job(*base, related)["metadata"]["name"] != name
    assert len(name) <= 63


def test_the_job_runs_restricted_and_without_a_token() -> None:
    spec = _job(CLAIM, 'models.tiny.model="org/a"')["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["serviceAccountName"] == "demo-tideserve-worker"
    assert spec["securityContext"]["runAsNonRoot"] is True
    [container] = spec["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert not any("gpu" in name for name in container["resources"]["limits"])


def test_the_job_uses_cache_and_token_of_the_engines() -> None:
    job = _job(CLAIM, 'models.tiny.model="org/a"', 'huggingFaceToken.existingSecret="hub"')
    env = {item["name"]: item for item in _container(job)["env"]}
    assert env["HF_HOME"]["value"] == "/models"
    assert env["HF_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "hub", "key": "token"}
    assert {"name": "models", "mountPath": "/models"} in _container(job)["volumeMounts"]


def test_permanent_failures_end_the_job_and_drains_do_not_count() -> None:
    rules = _job(CLAIM, 'models.tiny.model="org/a"')["spec"]["podFailurePolicy"]["rules"]
    assert rules[0]["action"] == "FailJob"
    assert rules[0]["onExitCodes"]["values"] == [2]
    assert rules[1]["action"] == "Ignore"


def test_with_host_path_each_pod_has_its_own_node() -> None:
    [job] = of_kind("Job", CHART / "ci/host-path-values.yaml")
    assert job["spec"]["parallelism"] == job["spec"]["completions"] == 2
    spec = job["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert spec["tolerations"][0]["key"] == "nvidia.com/gpu"
    [term] = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert term["labelSelector"]["matchLabels"].items() <= labels.items()


def test_each_profile_in_use_has_its_job() -> None:
    everything = CHART / "ci/everything-values.yaml"
    jobs = of_kind("Job", everything, 'modelCache.type="hostPath"')
    loaded = [tuple(_container(job)["args"]) for job in jobs]
    assert sorted(loaded) == [
        ("org/embed",),
        ("org/large",),
        ("org/small@0123456789abcdef0123456789abcdef01234567",),
    ]


def test_engines_share_compiled_kernels_only_on_the_volume() -> None:
    def folders(*sets: str) -> dict[str, str]:
        cluster = ray_service(LAPTOP, *sets)["spec"]["rayClusterConfig"]
        groups = {"head": cluster["headGroupSpec"]} | {g["groupName"]: g for g in cluster["workerGroupSpecs"]}
        return {
            name: item["value"]
            for name, group in groups.items()
            for item in group["template"]["spec"]["containers"][0]["env"]
            if item["name"] == env.COMPILE_CACHE
        }

    assert folders(CLAIM, "modelCache.compiled=true") == {"cpu": "/models/.compiled"}
    assert folders(CLAIM) == folders("modelCache.compiled=true") == {}


def test_a_claim_outlives_the_release_by_default() -> None:
    [claim] = of_kind("PersistentVolumeClaim", LAPTOP, CLAIM)
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    [claim] = of_kind("PersistentVolumeClaim", LAPTOP, CLAIM, "modelCache.pvc.keep=false")
    assert "annotations" not in claim["metadata"]
    own = 'modelCache={"type":"pvc","pvc":{"existingClaim":"mine"}}'
    assert of_kind("PersistentVolumeClaim", LAPTOP, own) == []
