"""Every set of values of ours, on every Kubernetes of the chart's range, through strict schemas."""

from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes import crd, kubernetes_api
from tests.kubernetes.chart import ALL_VALUES, CI_VALUES, documents, ray_service, rendered
from tests.kubernetes.tools import CHART, helm, needs_crds

VERSIONS = [f"1.{minor}" for minor in range(29, 37)]
CUSTOM = {
    "ray.io/v1": {"RayService"},
    "monitoring.coreos.com/v1": {"PodMonitor", "PrometheusRule"},
    "gateway.networking.k8s.io/v1": {"HTTPRoute"},
}
"""Kinds that Kubernetes itself has no schema of; RayService has its CRD."""


def test_lint_is_strict_and_finds_nothing() -> None:
    for values in ([], *(["--values", str(path)] for path in ALL_VALUES)):
        done = helm("lint", "--strict", str(CHART), *values)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_valid_on(version: str) -> None:
    known = 0
    for values in ALL_VALUES:
        for document in documents(values):
            if document["kind"] in CUSTOM.get(document["apiVersion"], ()):
                continue
            _check(document, version, values)
            known += 1
        for pod in _pods(ray_service(values)):
            _check(pod, version, values)
    assert known > len(ALL_VALUES)


def test_every_version_is_given_the_same_objects() -> None:
    """So they are rendered once for all of them."""
    assert rendered(CI_VALUES[0], kube_version=f"{VERSIONS[0]}.0") == rendered(CI_VALUES[0])
    made = [path for path in (CHART / "templates").rglob("*.*") if not path.name.startswith("_checks")]
    asked = [path.read_text() for path in made]
    assert [text for text in asked if ".Capabilities.KubeVersion" in text] == []


@needs_crds
@pytest.mark.parametrize("values", ALL_VALUES, ids=lambda path: path.stem)
def test_the_ray_service_has_only_fields_of_the_crd(values: Path) -> None:
    assert crd.problems(ray_service(values)) == []


@needs_crds
def test_the_crd_refuses_an_unknown_field() -> None:
    document = ray_service(CI_VALUES[0])
    spec = {**document["spec"], "serveConfig": "x"}
    assert any("serveConfig" in line for line in crd.problems({**document, "spec": spec}))


def test_an_unknown_field_of_a_pod_is_refused() -> None:
    pod = _pods(ray_service(CI_VALUES[0]))[0]
    [problem] = kubernetes_api.problems({**pod, "spec": {**pod["spec"], "tolerashuns": []}}, "1.36")
    assert "tolerashuns" in problem


def test_older_kubernetes_is_refused() -> None:
    done = helm("template", "x", str(CHART), "--values", str(CI_VALUES[0]), "--kube-version", "1.28.0")
    assert "chart requires kubeVersion" in done.stderr


def _check(document: dict[str, Any], version: str, values: Path) -> None:
    wrong = kubernetes_api.problems(document, version)
    assert wrong == [], f"{values.name}, {document['kind']} {document['metadata']['name']}, {version}"


def _pods(ray_service: dict[str, Any]) -> list[dict[str, Any]]:
    """The pod templates of a RayService as pods."""
    cluster = ray_service["spec"]["rayClusterConfig"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [
        {"apiVersion": "v1", "kind": "Pod", **group["template"], "metadata": {"name": "pod"}}
        for group in groups
    ]
