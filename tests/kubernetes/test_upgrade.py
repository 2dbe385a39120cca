"""What an upgrade changes: a knob only text that Ray Serve applies to running replicas, an image the pods."""

import copy
import re
from typing import Any

import pytest
from ray.serve._private.deployment_info import DeploymentInfo
from ray.serve._private.version import DeploymentVersion

from tests.kubernetes.chart import A100, Document, documents, ray_service, serve_config
from tests.kubernetes.tools import PROJECT

KNOBS = [
    "models.qwen-7b.autoscaling.max_replicas=5",
    "models.qwen-7b.autoscaling.min_replicas=2",
    "models.qwen-7b.autoscaling.ttft_target_s=0.4",
    'models.qwen-7b.autoscaling.mode="advise"',
    'models.qwen-7b.autoscaling.schedules=[{"start":"08:00","end":"18:00","min_replicas":3}]',
    "app.ingress.autoscaling.max_replicas=8",
]


def differing(before: Any, after: Any, path: str = "") -> set[str]:
    """Paths of what is not the same."""
    if isinstance(before, dict) and isinstance(after, dict):
        names = before.keys() | after.keys()
        return {
            found
            for name in names
            for found in differing(before.get(name), after.get(name), f"{path}/{name}")
        }
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return {found for index, (a, b) in pairs for found in differing(a, b, f"{path}/{index}")}
    return set() if before == after else {path}


def changed(*settings: str) -> set[str]:
    """What an upgrade with these settings changes, by kind and path."""
    before, after = documents(A100), documents(A100, *settings)
    named = [{f"{d['kind']} {d['metadata']['name']}": d for d in side} for side in (before, after)]
    return differing(named[0], named[1])


def test_knobs_change_the_serve_configuration_alone() -> None:
    assert changed(*KNOBS) == {"/RayService demo-tideserve/spec/serveConfigV2"}


def test_knobs_change_only_user_config() -> None:
    found = differing(serve_config(A100), serve_config(A100, *KNOBS))
    user_config = "/applications/0/deployments/0/user_config"
    model = f"{user_config}/autoscaling/qwen2.5-7b-instruct"
    names = ("max_replicas", "min_replicas", "ttft_target_s", "mode", "schedules")
    assert found == {f"{user_config}/ingress/max_replicas", *(f"{model}/{name}" for name in names)}


def test_changed_knobs_are_a_lightweight_update() -> None:
    before, after = (version(serve_config(A100, *sets)) for sets in ((), KNOBS))
    assert before.requires_actor_reconfigure(after)
    assert not before.requires_actor_restart(after)


def test_a_changed_model_restarts_replicas_and_no_pods() -> None:
    setting = "models.qwen-7b.max_model_len=8192"
    assert changed(setting) == {"/RayService demo-tideserve/spec/serveConfigV2"}
    before, after = version(serve_config(A100)), version(serve_config(A100, setting))
    assert before.requires_actor_restart(after)


ENTRIES = 'apiKeys.entries=[{"name":"web","hash":"sha256:' + "0" * 64 + '"}]'


def test_keys_come_without_other_pods() -> None:
    for keys in ('apiKeys.existingSecret="demo-tideserve-api-keys"', ENTRIES):
        of_the_service = {path for path in changed(keys) if path.startswith("/RayService")}
        assert of_the_service == {"/RayService demo-tideserve/spec/serveConfigV2"}, keys


SMALL_CHANGES = {
    "apiKeys.existingSecret": '"clients"', "apiKeys.key": '"keys"',
    "huggingFaceToken.existingSecret": '"hub"', "huggingFaceToken.key": '"hub"',
    "rayAuth.existingSecret": '"token"', "rayTls.enabled": "true", "rayTls.caSecret": '"ca"',
    "extraEnv": '[{"name":"A","value":"1"}]', "extraEnvFrom": '[{"secretRef":{"name":"a"}}]',
    "head.env": '[{"name":"A","value":"1"}]', "ingressWorkers.env": '[{"name":"A","value":"1"}]',
    "gpuProfiles.*.env": '[{"name":"A","value":"1"}]', "extraVolumes": '[{"name":"a","emptyDir":{}}]',
    "extraVolumeMounts": '[{"name":"tmp","mountPath":"/a"}]', "image.pullSecrets": '["a"]',
    "image.tag": '"2"', "image.digest": '"sha256:' + "0" * 64 + '"', "rayVersion": '"2.61.0"',
    "commonLabels": '{"a":"b"}', "podLabels": '{"a":"b"}', "commonAnnotations": '{"a":"b"}',
    "podAnnotations": '{"a":"b"}', "app.drain_timeout_s": "601", "preStopSeconds": "11",
    "fastDataPath": "false", "tmpSizeLimit": '"21Gi"', "homeSizeLimit": '"201Gi"',
    "gcsFaultTolerance": '{"enabled":true,"redisAddress":"redis:6379"}',
    "autoscaler": '{"upscalingMode":"Conservative"}', "schedulerName": '"volcano"',
    "serviceAccount.name": '"mine"', "modelCache.type": '"hostPath"',
    "app.batch": '{"enabled":false,"max_requests":10}', "app.ledger": '{"enabled":false,"currency":"CHF"}',
    "app.telemetry": '{"traces":{"enabled":true,"endpoint":"http://a:4317"}}',
    "app.http": '{"body_timeout_s":20}', "apiKeys.entries": ENTRIES.partition("=")[2],
    "ingress": '{"enabled":true}', "gateway": '{"enabled":true,"parentRefs":[{"name":"a"}]}',
    "monitoring": '{"podMonitor":{"enabled":true}}', "networkPolicy": '{"enabled":false}',
    "tests": '{"timeoutSeconds":60}', "service": '{"type":"NodePort"}',
}  # fmt: skip
"""A change of each value that docs/kubernetes.md lists by whether it makes a second cluster."""


def documented_changes() -> dict[str, bool]:
    """Whether each value makes a second cluster, as docs/kubernetes.md lists it."""
    text = (PROJECT / "docs/kubernetes.md").read_text(encoding="utf-8")
    table = text.partition("| a small change | second cluster |")[2].partition("\n\n")[0]
    said: dict[str, bool] = {}
    for values, second in re.findall(r"^\| (.+?) \| (yes|no) \|", table, re.M):
        said |= dict.fromkeys(re.findall(r"`([A-Za-z_.*]+)`", values), second == "yes")
    assert said.keys() == SMALL_CHANGES.keys()
    return said


def small_change(name: str) -> str:
    return f"{name.replace('*', 'a100-80gb')}={SMALL_CHANGES[name]}"


def test_documented_small_changes_make_no_second_cluster() -> None:
    small = [small_change(name) for name, second in documented_changes().items() if not second]
    assert pods_hash(*small) == pods_hash()


@pytest.mark.long
def test_documented_large_changes_make_a_second_cluster() -> None:
    context = {
        "rayTls.caSecret": ["rayTls.enabled=true"],
        "huggingFaceToken.key": ['huggingFaceToken.existingSecret="a"'],
        "apiKeys.key": ['apiKeys.existingSecret="a"'],
    }
    large = [name for name, second in documented_changes().items() if second]
    same = [
        name
        for name in large
        if pods_hash(*(sets := context.get(name, [])), small_change(name)) == pods_hash(*sets)
    ]
    assert same == []


def pods_hash(*settings: str) -> str:
    found: str = ray_service(A100, *settings)["metadata"]["annotations"]["tideserve/pods"]
    return found


def test_other_numbers_of_pods_are_the_same_pods() -> None:
    more = "gpuProfiles.a100-80gb.maxWorkers=16"
    hashes = [
        ray_service(A100, *sets)["metadata"]["annotations"] for sets in ((), (more,), ('image.tag="v2"',))
    ]
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_changed_image_changes_only_pods() -> None:
    found = changed('image.tag="v2"')
    assert found
    assert "/RayService demo-tideserve/spec/serveConfigV2" not in found
    spec = "/RayService demo-tideserve/spec/rayClusterConfig/"
    assert all(path.endswith("/image") for path in found if path.startswith(spec))


def test_pods_do_not_name_the_chart_version() -> None:
    found = copy.deepcopy(ray_service(A100))
    groups = found["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    for template in (found["spec"]["rayClusterConfig"]["headGroupSpec"], *groups):
        assert "helm.sh/chart" not in str(template)
        assert "app.kubernetes.io/version" not in str(template)


def version(config: Document) -> DeploymentVersion:
    """Ray Serve's version of the Ingress deployment, as its controller makes it of a configuration."""
    from ray.serve._private.config import DeploymentConfig, ReplicaConfig
    from ray.serve._private.deploy_utils import get_app_code_version
    from ray.serve.schema import ServeApplicationSchema

    application = ServeApplicationSchema.model_validate(config["applications"][0])
    [ingress] = application.deployments
    info = DeploymentInfo(
        deployment_config=DeploymentConfig(user_config=ingress.user_config),
        replica_config=ReplicaConfig.create(lambda: None),
        start_time_ms=0,
        deployer_job_id="",
    )
    return DeploymentVersion(
        get_app_code_version(application), info.deployment_config, info.replica_config.ray_actor_options
    )
