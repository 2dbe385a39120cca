"""The Jobs: the download, the two tests of `helm test`, and the hook of `helm uninstall`."""

import argparse
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_proof.options import Options, parse
from benchmarks.gpu_proof.proof import SMOKE, STAGES
from benchmarks.gpu_proof.random_weights import SHAPES
from serve_app import env
from serve_app.cli import ask, explain
from tests.kubernetes.chart import A100, LAPTOP, documents, of_kind, ray_service
from tests.kubernetes.tools import CHART
from tools.chart.schema import PROOF_SHAPES

EVERYTHING = CHART / "ci/everything-values.yaml"
CLAIM = 'modelCache={"type":"pvc"}'
HUB = (CLAIM, 'models.tiny.model="org/a"')
PROOF = "tests.gpuProof.enabled=true"
DIGEST = f"sha256:{'0' * 64}"
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
    "e": {"gpuProfile": "cpu", "model": "embedded"},
}


def jobs(name: str, values: Path, *sets: str) -> list[dict[str, Any]]:
    """Jobs whose container has a name: `download`, `ask`, `gpu-proof` or `uninstall`."""
    return [job for job in of_kind("Job", values, *sets) if container(job)["name"] == name]


def pod(job: dict[str, Any]) -> dict[str, Any]:
    return dict(job["spec"]["template"]["spec"])


def container(job: dict[str, Any]) -> dict[str, Any]:
    [found] = pod(job)["containers"]
    return dict(found)


def one(name: str, values: Path, *sets: str) -> dict[str, Any]:
    [job] = jobs(name, values, *sets)
    return job


def engine(group: str) -> dict[str, Any]:
    groups = ray_service(EVERYTHING)["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    [spec] = [each["template"]["spec"] for each in groups if each["groupName"] == group]
    return dict(spec)


def mounts(job: dict[str, Any]) -> dict[str, str]:
    return {mount["mountPath"]: mount["name"] for mount in container(job)["volumeMounts"]}


def test_jobs_run_restricted_and_only_the_hook_has_rights() -> None:
    found = [job for job in of_kind("Job", EVERYTHING) if job["metadata"]["name"] != "llm-note"]
    assert {container(job)["name"] for job in found} == {"download", "ask", "gpu-proof", "uninstall"}
    for job in found:
        spec, hook = pod(job), container(job)["name"] == "uninstall"
        assert spec["automountServiceAccountToken"] is hook
        assert spec["serviceAccountName"] == ("llm-uninstall" if hook else "llm-worker")
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert container(job)["securityContext"]["readOnlyRootFilesystem"] is True
        assert job["spec"]["activeDeadlineSeconds"] > 0
        assert job["spec"]["ttlSecondsAfterFinished"] > 0
        assert (container(job)["resources"]["limits"].get("nvidia.com/gpu") == "1") is (
            container(job)["name"] == "gpu-proof"
        )


def test_hub_models_are_downloaded_once_with_tokenizer_and_draft() -> None:
    sets = (CLAIM, "gpuProfiles.cpu.maxWorkers=9", f"models={json.dumps(MODELS)}")
    found = container(one("download", LAPTOP, *sets))
    assert found["command"] == ["python", "-m", "serve_app.weights.download"]
    assert found["args"] == ["--tokenizer=org/t@r1", "org/a@r1", "org/draft"]


@pytest.mark.parametrize(
    ("group", "claim", "path", "storage"),
    [("l4", "llm-models", "/models", "shared"), ("h100-x8-large", "llm-models-large", "/large", "fast")],
)
def test_a_models_own_cache_is_in_its_own_group(group: str, claim: str, path: str, storage: str) -> None:
    found = {each["metadata"]["name"]: each["spec"] for each in of_kind("PersistentVolumeClaim", EVERYTHING)}
    assert found[claim]["storageClassName"] == storage
    [loader] = [pod(job) for job in jobs("download", EVERYTHING) if f"'{claim}'" in str(pod(job))]
    assert (loader["containers"][0]["args"] == ["org/large"]) is (group == "h100-x8-large")
    for spec in (engine(group), loader):
        assert {"name": "models", "persistentVolumeClaim": {"claimName": claim}} in spec["volumes"]
        assert {"mountPath": path, "name": "models"} in spec["containers"][0]["volumeMounts"]
        assert {"name": "HF_HOME", "value": path} in spec["containers"][0]["env"]
        assert "{'key': 'token', 'name': 'hub'}" in str(spec["containers"][0]["env"])


def test_without_hub_models_there_is_no_download() -> None:
    assert jobs("download", LAPTOP, CLAIM) == []
    assert jobs("download", LAPTOP, 'models.tiny.model="org/a"') == []
    bucket = 'models.qwen-7b={"gpuProfile":"l4","model":"s3://b/m","load_format":"runai_streamer"}'
    assert jobs("download", A100, CLAIM, bucket) == []


def test_the_name_of_the_download_follows_its_contents() -> None:
    name = one("download", LAPTOP, *HUB)["metadata"]["name"]
    for unrelated in ("models.tiny.autoscaling.headroom=1", "monitoring.podMonitor.enabled=true"):
        assert one("download", LAPTOP, *HUB, unrelated)["metadata"]["name"] == name
    for related in (
        'models.tiny.revision="x"',
        'image.tag="v2"',
        'modelCache.preDownload.nodeSelector={"a":"b"}',
    ):
        assert one("download", LAPTOP, *HUB, related)["metadata"]["name"] != name
    assert len(name) <= 63


def test_permanent_failures_end_the_download_and_drains_do_not_count() -> None:
    permanent, drain = one("download", LAPTOP, *HUB)["spec"]["podFailurePolicy"]["rules"]
    assert (permanent["action"], permanent["onExitCodes"]["values"]) == ("FailJob", [2])
    assert drain["action"] == "Ignore"


def test_with_host_path_each_download_has_its_own_node() -> None:
    job = one("download", CHART / "ci/host-path-values.yaml")
    assert job["spec"]["parallelism"] == job["spec"]["completions"] == 2
    spec = pod(job)
    assert spec["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert spec["tolerations"][0]["key"] == "nvidia.com/gpu"
    [term] = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert term["labelSelector"]["matchLabels"].items() <= labels.items()


def test_each_profile_in_use_has_its_download() -> None:
    found = jobs("download", EVERYTHING, 'modelCache.type="hostPath"')
    assert sorted(tuple(container(job)["args"]) for job in found) == [
        ("org/embed",),
        ("org/large",),
        ("org/small@0123456789abcdef0123456789abcdef01234567",),
    ]


def test_tests_end_with_the_release_and_by_themselves() -> None:
    """`helm uninstall` knows no hooks: what it leaves must end, even while it waits for a GPU."""
    for name, policy in (
        ("ask", "before-hook-creation,hook-succeeded"),
        ("gpu-proof", "before-hook-creation"),
    ):
        job = one(name, A100, PROOF)
        assert job["metadata"]["annotations"] == {
            "helm.sh/hook": "test",
            "helm.sh/hook-delete-policy": policy,
        }
        assert job["spec"]["backoffLimit"] == 0
        assert job["spec"]["ttlSecondsAfterFinished"] <= 3600
        assert pod(job)["restartPolicy"] == "Never"


LINES = "\n  # of the web shop\n  first-key\nsecond-key\n"


def _run_test(
    folder: Path,
    *sets: str,
    asked: int = 0,
    explained: int = 0,
    content: str = LINES,
    open_to_all: bool = False,
) -> tuple[int, list[str]]:
    """Its exit status, and the arguments of a fake `tideserve` that ends as told, after its key."""
    found = container(one("ask", LAPTOP, *sets))
    script, *arguments = found["args"]
    keys = folder / "api-keys"
    keys.write_text(content, encoding="utf-8")
    said = folder / "said"
    said.touch()
    program = folder / "tideserve"
    program.write_text(
        f'#!/bin/sh\necho "${env.API_KEY} $*" >> {said}\n'
        f'[ "$1$PROTECTED${env.API_KEY}" = askyes ] && exit 1\n'
        f'[ "$1" = ask ] && exit {asked}\nexit {explained}\n'
    )
    program.chmod(0o755)
    protected = "yes" if sets and not open_to_all else ""
    done = subprocess.run(
        [*found["command"], script.replace("/etc/tideserve/secrets/api-keys", str(keys)), *arguments],
        check=False, env={"PATH": f"{folder}:/usr/bin:/bin", "PROTECTED": protected},
    )  # fmt: skip
    return done.returncode, said.read_text().splitlines()


def test_the_test_runs_valid_commands(tmp_path: Path) -> None:
    status, lines = _run_test(tmp_path)
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    ask.add_command(commands)
    explain.add_command(commands)
    asked, explained = (parser.parse_args(line.split()) for line in lines)
    assert status == 0
    assert asked.model == "tideserve-tiny"
    assert asked.url == explained.url == "http://demo-tideserve-serve-svc:8000"
    assert one("ask", LAPTOP)["spec"]["activeDeadlineSeconds"] > asked.timeout


def test_the_test_fails_without_answer_or_with_rejected_knobs(tmp_path: Path) -> None:
    # With knobs that were rejected `tideserve explain` exits with 1, though everything is served.
    assert _run_test(tmp_path, asked=1)[0] == 1
    assert _run_test(tmp_path, explained=1)[0] == 1


def test_the_test_sends_the_first_key_of_the_file(tmp_path: Path) -> None:
    sets = ('apiKeys.existingSecret="clients"',)
    status, lines = _run_test(tmp_path, *sets)
    assert [line.split(" --")[0].strip() for line in lines] == ["first-key ask", "ask", "first-key explain"]
    assert status == 0
    assert mounts(one("ask", LAPTOP, *sets))["/etc/tideserve/secrets"] == "api-keys"


def test_the_test_fails_if_keys_are_set_and_none_is_needed(tmp_path: Path) -> None:
    """An old cluster from before the keys is still the active one."""
    status, lines = _run_test(tmp_path, 'apiKeys.existingSecret="clients"', open_to_all=True)
    assert status == 1
    assert not any("explain" in line for line in lines)


def test_the_test_of_named_keys_needs_a_key_of_its_own(tmp_path: Path) -> None:
    named = 'apiKeys.entries=[{"name":"web","hash":"sha256:' + "0" * 64 + '"}]'
    assert _run_test(tmp_path, named, content="keys:\n  - name: web\n") == (1, [])

    found = container(one("ask", LAPTOP, named, 'tests.apiKeySecret="mine"'))
    [variable] = [each for each in found["env"] if each["name"] == env.API_KEY]
    assert variable["valueFrom"]["secretKeyRef"] == {"name": "mine", "key": "api-key"}
    assert "api-keys" not in found["args"][0]


def test_without_a_model_that_completes_there_is_no_test() -> None:
    assert jobs("ask", LAPTOP, 'models.tiny.task="embed"') == []


def _options(values: Path, *sets: str) -> Options:
    """The options of the proof's command line."""
    words = container(one("gpu-proof", values, *sets))["args"][2:]
    assert words[:3] == ["python", "-m", "benchmarks.gpu_proof"]
    return parse(words[3:], tuple(stage.name for stage in STAGES), SMOKE)


def test_the_proof_runs_where_the_engines_run() -> None:
    assert jobs("gpu-proof", A100) == []
    spec, other = pod(one("gpu-proof", EVERYTHING)), engine("mine")
    for key in ("nodeSelector", "tolerations", "runtimeClassName", "securityContext", "serviceAccountName"):
        assert spec[key] == other[key], key
    assert spec["containers"][0]["resources"]["limits"] == other["containers"][0]["resources"]["limits"]


def test_the_proof_has_one_gpu_of_the_first_gpu_profile() -> None:
    big = 'models.big={"gpuProfile":"h100","model":"a","tensor_parallel_size":8}'
    sets = (PROOF, big, 'models.a={"gpuProfile":"cpu","model":"embedded"}')
    limits = container(one("gpu-proof", A100, *sets))["resources"]["limits"]
    assert (limits["nvidia.com/gpu"], limits["memory"]) == ("1", "180Gi")
    assert _options(A100, *sets).device == "gpu"
    assert _options(A100, *sets, 'tests.gpuProof.gpuProfile="cpu"').device == "cpu"
    assert _options(LAPTOP, PROOF).device == "cpu"
    assert set(container(one("gpu-proof", LAPTOP, PROOF))["resources"]["limits"]) == {"cpu", "memory"}


def test_the_proof_writes_its_smoke_stages_to_a_volume() -> None:
    options = _options(A100, PROOF, "tests.gpuProof.minutes=2.5", 'tests.gpuProof.randomWeights="tiny"')
    assert options.stages == SMOKE
    assert (options.minutes, options.model, options.random_weights) == (2.5, None, "tiny")
    job = one("gpu-proof", A100, PROOF)
    assert {"/tmp", "/home/tideserve", "/dev/shm", str(options.out)} == set(mounts(job))
    volumes = {volume["name"]: volume for volume in pod(job)["volumes"]}
    assert all("emptyDir" in volumes[name] for name in mounts(job).values())
    assert set(PROOF_SHAPES) == set(SHAPES)


def test_a_real_model_gets_cache_and_token_and_random_weights_neither() -> None:
    found, random = (
        container(one("gpu-proof", EVERYTHING, *sets)) for sets in ((), ('tests.gpuProof.model=""',))
    )
    assert _options(EVERYTHING).model == "org/small"
    variables = {item["name"]: item for item in engine("mine")["containers"][0]["env"]}
    assert [item for item in found["env"] if variables.get(item["name"]) != item] == []
    for has, its in ((True, found), (False, random)):
        assert ("models" in [mount["name"] for mount in its["volumeMounts"]]) is has
        assert bool({"HF_HOME", "HF_TOKEN"} & {item["name"] for item in its["env"]}) is has


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
    job = one("gpu-proof", A100, 'image.repository="registry.example/tideserve"', PROOF, *sets)
    assert container(job)["image"] == image


@pytest.mark.parametrize("status", [0, 1, 2])
def test_the_proof_ends_with_its_status_and_document(tmp_path: Path, status: int) -> None:
    found = container(one("gpu-proof", A100, PROOF))
    script, *arguments = found["args"]
    (tmp_path / "servers").mkdir()
    (tmp_path / "servers/01.log").write_text("why the server died\n", encoding="utf-8")
    program = tmp_path / "python"
    document = "" if status == 2 else f"echo document > {tmp_path}/proof.json\n"
    program.write_text(f"#!/bin/sh\n{document}exit {status}\n")
    program.chmod(0o755)
    done = subprocess.run(
        [*found["command"], script.replace("/results", str(tmp_path)), *arguments], check=False,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == status
    assert done.stdout.split("\n")[-2:] == (["why the server died", ""] if status == 2 else ["document", ""])
    assert ("why the server died" in done.stdout) is (status != 0)


def test_uninstall_deletes_the_ray_service_before_its_account() -> None:
    """Redis is cleared by a Job with the head's account, which Helm would delete first."""
    hooks = [found for found in documents(EVERYTHING) if "uninstall" in found["metadata"]["name"]]
    by_kind = {found["kind"]: found for found in hooks}
    assert by_kind.keys() == {"ServiceAccount", "Role", "RoleBinding", "Job"}
    for kind, found in by_kind.items():
        annotations = found["metadata"]["annotations"]
        assert annotations["helm.sh/hook"] == "pre-delete"
        assert annotations["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"
        assert annotations.get("helm.sh/hook-weight", "0") == ("0" if kind == "Job" else "-1")
    allowed = {(*rule["resources"], *rule["verbs"]) for rule in by_kind["Role"]["rules"]}
    assert allowed == {("rayservices", "delete"), ("rayclusters", "list")}
    assert by_kind["RoleBinding"]["subjects"][0]["name"] == pod(by_kind["Job"])["serviceAccountName"]
    arguments = container(by_kind["Job"])["args"]
    assert arguments == ["--namespace", "llm", "--timeout", "330", "llm"]
    given_up = int(ray_service(EVERYTHING)["metadata"]["annotations"]["ray.io/gcs-ft-deletion-timeout"])
    # The operator's Job has 300 s, and says nothing when they are over. The head ends before it begins.
    assert 60 < given_up < 60 + 300
    assert given_up < int(arguments[3]) < by_kind["Job"]["spec"]["activeDeadlineSeconds"]


def test_an_uninstall_that_cannot_hang_has_no_hook() -> None:
    assert jobs("uninstall", A100) == []
    redis = 'gcsFaultTolerance={"enabled":true,"redisAddress":"redis:6379"}'
    assert jobs("uninstall", A100, redis) != []
    own = 'serviceAccount={"create":false,"name":"mine"}'
    assert jobs("uninstall", A100, redis, own) == []
