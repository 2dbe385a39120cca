"""What NOTES.txt tells after an installation, and what Helm asks of the cluster."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from tests.kubernetes.chart import A100, API_VERSIONS, EXAMPLES, LAPTOP, Document, ray_service
from tests.kubernetes.tools import CHART, helm

EVERYTHING = CHART / "ci/everything-values.yaml"
HOST_PATH = CHART / "ci/host-path-values.yaml"


def notes_of(
    folder: Path, values: Path, *sets: str, options: tuple[str, ...] = (), live: Document | None = None
) -> str:
    """NOTES.txt as one line, by way of an object: `helm template` does not print it.

    `live` stands for the RayService of the cluster, which `helm template` cannot ask.
    """
    chart = folder / "tideserve"
    shutil.copytree(CHART, chart)
    helpers = chart / "templates/_helpers.tpl"
    if live is not None:
        options = (
            *options,
            "--api-versions",
            "ray.io/v1/RayService",
            "--api-versions",
            "ray.io/v1/RayCronJob",
        )
        text, times = re.subn(
            r'lookup "ray.io/v1".+ \| toYaml', lambda _: json.dumps(json.dumps(live)), helpers.read_text()
        )
        assert times == 1
        helpers.write_text(text, encoding="utf-8")
    text = (chart / "templates/NOTES.txt").read_text(encoding="utf-8")
    (chart / "templates/_notes.tpl").write_text(
        '{{- define "notes" }}' + text + "{{ end }}", encoding="utf-8"
    )
    (chart / "templates/notes.yaml").write_text('notes: {{ include "notes" . | toJson }}', encoding="utf-8")
    arguments = ["demo", str(chart), "--namespace", "llm", "--values", str(values), *options]
    for setting in sets:
        arguments += ["--set-json", setting]
    done = helm("template", *arguments, "--show-only", "templates/notes.yaml")
    assert done.returncode == 0, done.stderr
    notes = str(yaml.safe_load(done.stdout)["notes"])
    assert len(notes.splitlines()) < 60
    return " ".join(notes.split())


def test_the_notes_name_the_next_commands_and_what_to_know(tmp_path: Path) -> None:
    notes = notes_of(tmp_path, LAPTOP)
    for text in (
        "kubectl wait --namespace llm --for=condition=Ready --timeout=20m rayservice/demo-tideserve",
        "kubectl port-forward --namespace llm service/demo-tideserve-serve-svc 8000:8000",
        '"model": "tideserve-tiny", "stream": true',
        "helm test --namespace llm demo",
        "tideserve explain",
        "kubectl describe raycluster,rayservice --namespace llm",
        "WARNING: apiKeys is empty",
        "WARNING: monitoring.podMonitor.enabled = false",
    ):
        assert text in notes


def test_the_notes_list_every_object_that_must_be_there(tmp_path: Path) -> None:
    own = ('serviceAccount={"create":false,"name":"mine"}', 'modelCache.pvc.existingClaim="weights"')
    notes = notes_of(tmp_path / "own", EVERYTHING, *own)
    [command] = re.findall(r"kubectl get --namespace llm (.+?) > /dev/null", notes)
    required = [
        *("configmap/company-ca", "ingressclass/nginx", "persistentvolumeclaim/weights"),
        *("priorityclass/system-cluster-critical", "runtimeclass/nvidia", "secret/bucket", "secret/clients"),
        *("secret/hub", "secret/ray-ca", "secret/redis", "secret/registry", "serviceaccount/mine"),
        "storageclass/fast",
    ]
    assert command.split() == required
    assert "storageclass/shared" in notes_of(tmp_path / "claim", EVERYTHING)
    assert "kubectl get storageclass" in notes_of(tmp_path / "default", LAPTOP, 'modelCache.type="pvc"')


def test_helm_asks_for_nothing_that_it_may_not_read() -> None:
    """A question that is forbidden fails the release. Helm reads the RayService before it writes it."""
    texts = [path.read_text() for path in (CHART / "templates").rglob("*.*")]
    asked = re.compile(r"\blookup \S+ \S+")
    assert {found for text in texts for found in asked.findall(text)} == {'lookup "ray.io/v1" "RayService"'}


def test_the_notes_explain_removal_and_the_incremental_upgrade(tmp_path: Path) -> None:
    notes = notes_of(tmp_path / "redis", EVERYTHING)
    assert "gives up after 300 s, and the event ForceDeletedStuckCluster" in notes
    assert "Authorization: Bearer $OPENAI_API_KEY" in notes
    assert "apiKeys is empty" not in notes
    notes = notes_of(tmp_path / "gateway", HOST_PATH)
    assert "the Gateway demo-tideserve-gateway" in notes
    assert "moves 10 % of the new requests every 30 s" in notes
    assert "WARNING: the cluster has no Gateway API" in notes
    gateway = ("--api-versions", "gateway.networking.k8s.io/v1/Gateway")
    assert "no Gateway API" not in notes_of(tmp_path / "there", HOST_PATH, options=gateway)


def test_monitoring_needs_its_kinds_in_the_cluster(tmp_path: Path) -> None:
    """The API server refuses a release with kinds that it does not know."""
    done = helm("template", "x", str(CHART), "--values", str(A100))
    assert "monitoring.coreos.com" not in done.stdout
    missing = "monitoring.podMonitor.enabled: the cluster has no kind PodMonitor"
    assert missing in notes_of(tmp_path / "bare", A100)
    assert missing not in notes_of(tmp_path / "there", A100, options=tuple(API_VERSIONS))


@pytest.mark.parametrize(("kinds", "old"), [(["RayService"], True), (["RayService", "RayCronJob"], False)])
def test_an_operator_that_is_too_old_is_refused(kinds: list[str], old: bool) -> None:
    options = [word for kind in kinds for word in ("--api-versions", f"ray.io/v1/{kind}")]
    done = helm("template", "x", str(CHART), "--values", str(LAPTOP), *options)
    assert ("the KubeRay operator of this cluster is older than 1.6" in done.stderr) is old


@pytest.mark.parametrize("values", EXAMPLES, ids=lambda path: path.stem)
def test_examples_need_nothing_that_a_bare_cluster_lacks(values: Path, tmp_path: Path) -> None:
    notes = notes_of(tmp_path, values)
    assert "kubectl get --namespace" not in notes
    assert "StorageClass" not in notes


SWITCH = "PENDING:.status.pendingServiceStatus.rayClusterName"
SINGLE_GPU = CHART / "examples/single-gpu.yaml"


def test_the_notes_say_what_other_pods_need(tmp_path: Path) -> None:
    live = ray_service(SINGLE_GPU)
    same = notes_of(
        tmp_path / "same", SINGLE_GPU, 'apiKeys.existingSecret="demo-tideserve-api-keys"', live=live
    )
    assert "This upgrade changes no pods" in same
    assert SWITCH not in same
    token = 'huggingFaceToken.existingSecret="hub"'
    other = notes_of(tmp_path / "other", SINGLE_GPU, token, live=live)
    assert "THIS UPGRADE CHANGES THE PODS" in other
    assert "needs a head, 2 ingress pods and 1 GPUs more" in other
    assert SWITCH in other
    none = notes_of(tmp_path / "none", SINGLE_GPU, token, 'upgradeStrategy.type="None"', live=live)
    assert "They change when you delete the RayCluster" in none
    groups = live["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert [group["groupName"] for group in groups] == ["ingress", "any-gpu"]
    for profile, says in (("cpu", "adds worker groups to the running cluster"), ("a10g", "CHANGES THE PODS")):
        model = f'models.more={{"gpuProfile":"{profile}","model":"embedded"}}'
        assert says in notes_of(tmp_path / profile, SINGLE_GPU, model, live=live)
    del live["metadata"]["annotations"]
    assert "may change the pods" in notes_of(tmp_path / "older", SINGLE_GPU, live=live)
    assert "changes no pods" not in notes_of(tmp_path / "first", SINGLE_GPU)


def test_the_notes_warn_of_a_gpu_profile_for_every_node(tmp_path: Path) -> None:
    warning = "WARNING: gpuProfiles.any-gpu has no nodeSelector: its pods take every node with nvidia.com/gpu"
    assert warning in notes_of(tmp_path / "any", SINGLE_GPU)
    placed = 'gpuProfiles.any-gpu.nodeSelector={"gpu":"h200"}'
    for values in (SINGLE_GPU, A100, LAPTOP):
        assert "no nodeSelector" not in notes_of(tmp_path / values.stem, values, placed)


def test_the_notes_warn_of_a_cluster_that_is_still_pending(tmp_path: Path) -> None:
    live = ray_service(SINGLE_GPU) | {
        "status": {"pendingServiceStatus": {"rayClusterName": "demo-tideserve-x"}}
    }
    notes = notes_of(tmp_path, SINGLE_GPU, live=live)
    assert "WARNING: the cluster demo-tideserve-x of an earlier upgrade is not ready yet" in notes
    assert SWITCH in notes
