"""What a public scanner says of the chart's manifests and of the images, and why the rest is as it is."""

import re
from dataclasses import dataclass

import pytest

from tests.kubernetes.scan import Failed, needs_checkov, scan
from tests.kubernetes.tools import CHART, PROJECT, helm
from tools.supply_chain.locks import IMAGES
from tools.supply_chain.sbom import read_dockerfile


@dataclass(frozen=True, slots=True)
class Excuse:
    """Why resources of some names may fail a check."""

    check: str
    resources: str
    """A regular expression for the whole of `Kind.namespace.name`."""
    reason: str


RAY_PODS = r"Pod\..*-(head|ingress|l4|h100(-x8-large)?|mine|cpu)"
EXCUSES = (
    Excuse("CKV_K8S_8", RAY_PODS, "the operator injects liveness probes that know Ray's ports"),
    Excuse("CKV_K8S_9", RAY_PODS, "the operator injects readiness probes that know Ray's ports"),
    Excuse(
        "CKV_K8S_15", ".*", "tags are versions, and an image of gigabytes would be asked for at every start"
    ),
    Excuse("CKV_K8S_43", ".*", "`image.digest` is the user's to set: none is published"),
    Excuse("CKV_K8S_21", ".*", "manifests name no namespace: the release's is the user's to choose"),
    Excuse(
        "CKV_K8S_35",
        rf"{RAY_PODS}|Job\..*",
        "huggingface_hub and clients of buckets read their credentials from the environment",
    ),
    Excuse("CKV_K8S_38", r"Pod\..*-head", "Ray's autoscaler and our placement reports talk to the API"),
    Excuse("CKV_K8S_38", r"Job\..*-uninstall", "it deletes the RayService"),
    Excuse("CKV_K8S_40", ".*", "1000 is the user that owns the home folder in the image"),
    Excuse("CKV_DOCKER_2", ".*", "Kubernetes takes no notice of HEALTHCHECK"),
)


def excused(failed: Failed) -> list[Excuse]:
    return [
        excuse
        for excuse in EXCUSES
        if excuse.check == failed.check and re.fullmatch(excuse.resources, failed.resource)
    ]


WORST_POD = """
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: worst}
spec:
  headGroupSpec:
    template:
      spec:
        containers:
        - {name: ray, image: "x:latest", securityContext: {privileged: true, runAsUser: 0}}
"""
WORST_DOCKERFILE = "FROM debian:latest\nCOPY a b\nUSER root\n"


@pytest.mark.long
@needs_checkov
def test_every_failed_check_has_a_reason() -> None:
    """One scan of everything, because starting the scanner takes 3 s; the worst of pods shows it sees."""
    manifests = {"worst": WORST_POD}
    for values in sorted((CHART / "ci").glob("*-values.yaml")):
        done = helm("template", "tideserve", str(CHART), "--values", str(values))
        assert done.returncode == 0, done.stderr
        manifests[values.stem] = done.stdout
    dockerfiles = {"worst": WORST_DOCKERFILE}
    for image in IMAGES:
        text = (PROJECT / f"k8s/images/{image}.Dockerfile").read_text()
        dockerfiles[image] = text.replace("${BASE_IMAGE}", read_dockerfile(image)[0])

    failures = scan(manifests, dockerfiles)

    worst = {failed.check for failed in failures if failed.file == "worst"}
    assert worst >= {"CKV_K8S_16", "CKV_K8S_40", "CKV_K8S_14", "CKV_DOCKER_7", "CKV_DOCKER_8"}
    ours = [failed for failed in failures if failed.file != "worst"]
    assert {failed.file for failed in ours} == {*manifests, *dockerfiles} - {"worst"}
    assert [failed for failed in ours if not excused(failed)] == []
    used = {excuse for failed in ours for excuse in excused(failed)}
    assert [excuse for excuse in EXCUSES if excuse not in used] == []
