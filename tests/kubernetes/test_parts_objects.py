"""Rights, budgets, monitoring, the test pod and the notes."""

import argparse
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from serve_app import env
from serve_app.cli import ask, explain
from tests.kubernetes import kubernetes_api
from tests.kubernetes.chart import ALL_VALUES, LAPTOP, documents, of_kind, ray_service
from tests.kubernetes.stub_api_server import api_server
from tests.kubernetes.tools import CHART, helm

EVERYTHING = CHART / "ci/everything-values.yaml"
HOST_PATH = CHART / "ci/host-path-values.yaml"


def test_only_the_head_has_rights() -> None:
    [role] = of_kind("Role", LAPTOP)
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    [binding] = of_kind("RoleBinding", LAPTOP)
    [subject] = binding["subjects"]
    assert (subject["name"], subject["namespace"]) == ("demo-tideserve-head", "llm")
    kinds = {found["kind"] for values in ALL_VALUES for found in documents(values)}
    assert not kinds & {"ClusterRole", "ClusterRoleBinding"}


def test_workers_have_an_account_without_a_token() -> None:
    accounts = {found["metadata"]["name"]: found for found in of_kind("ServiceAccount", LAPTOP)}
    assert accounts["demo-tideserve-worker"]["automountServiceAccountToken"] is False
    for group in ray_service(LAPTOP)["spec"]["rayClusterConfig"]["workerGroupSpecs"]:
        assert group["template"]["spec"]["serviceAccountName"] == "demo-tideserve-worker"


def test_rights_and_accounts_can_be_turned_off() -> None:
    kinds = {found["kind"] for found in documents(HOST_PATH)}
    assert not kinds & {"ServiceAccount", "Role", "RoleBinding"}


def test_budgets_count_pods() -> None:
    budgets = {
        found["spec"]["selector"]["matchLabels"]["ray.io/group"]: found["spec"]
        for found in of_kind("PodDisruptionBudget", LAPTOP, "ingressWorkers.minWorkers=3")
    }
    assert {group: spec["minAvailable"] for group, spec in budgets.items()} == {"ingress": 2}
    assert "maxUnavailable" not in budgets["ingress"]


def test_a_drain_leaves_one_of_two_ingress_pods() -> None:
    [budget] = of_kind("PodDisruptionBudget", CHART / "examples/zero-to-n.yaml")
    assert budget["spec"]["minAvailable"] == 1
    assert budget["spec"]["selector"]["matchLabels"]["ray.io/group"] == "ingress"


def test_a_group_that_may_be_empty_has_no_budget() -> None:
    assert of_kind("PodDisruptionBudget", LAPTOP) == []
    always = of_kind("PodDisruptionBudget", LAPTOP, "gpuProfiles.cpu.minWorkers=2")
    assert [found["metadata"]["name"] for found in always] == ["demo-tideserve-cpu"]


def test_the_priority_class_is_the_one_that_engines_use() -> None:
    [created] = of_kind("PriorityClass", EVERYTHING)
    engines = ray_service(EVERYTHING)["spec"]["rayClusterConfig"]["workerGroupSpecs"][1]["template"]["spec"]
    assert created["metadata"]["name"] == engines["priorityClassName"]


def test_scraped_series_lose_rays_prefix() -> None:
    [monitor] = of_kind("PodMonitor", EVERYTHING)
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    [relabeling] = endpoint["metricRelabelings"]
    name = re.fullmatch(relabeling["regex"], "ray_llm_ttft_seconds_bucket")
    assert name is not None
    assert name.expand(relabeling["replacement"].replace("$", "\\")) == "llm_ttft_seconds_bucket"
    assert re.fullmatch(relabeling["regex"], "ray_serve_num_ongoing_requests") is None
    ports = ray_service(EVERYTHING)["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]
    assert endpoint["port"] in [port["name"] for port in ports["containers"][0]["ports"]]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"


def test_dashboards_are_the_files_with_the_price_in_them() -> None:
    maps = of_kind("ConfigMap", EVERYTHING, "monitoring.dashboards.gpuHourPrice=3.25")
    dashboards = {
        next(iter(found["data"])): found for found in maps if "dashboard" in found["metadata"]["name"]
    }
    # Grafana's sidecar makes files of the keys, all in one folder, and ours are not the only ones.
    assert set(dashboards) == {f"tideserve-{path.name}" for path in CHART.glob("files/dashboards/*.json")}
    for name, found in dashboards.items():
        file = CHART / "files/dashboards" / name.removeprefix("tideserve-")
        text = file.read_text(encoding="utf-8")
        assert found["data"][name] == text.strip().replace("__GPU_HOUR_PRICE__", "3.25")
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert found["metadata"]["annotations"] == {"grafana_folder": "Tideserve"}


def _test_pod(*sets: str) -> dict[str, Any]:
    [pod] = [
        found for found in of_kind("Pod", LAPTOP, *sets) if "helm.sh/hook" in found["metadata"]["annotations"]
    ]
    return pod


def _run_test_pod(folder: Path, *sets: str, asked: int = 0, explained: int = 0) -> tuple[int, list[str]]:
    """Its exit status, and what a `tideserve` that ends as told was called with, after its key."""
    [container] = _test_pod(*sets)["spec"]["containers"]
    script, *arguments = container["args"]
    keys = folder / "api-keys"
    keys.write_text("\n  # of the web shop\n  first-key\nsecond-key\n", encoding="utf-8")
    said = folder / "said"
    program = folder / "tideserve"
    program.write_text(
        f'#!/bin/sh\necho "${env.API_KEY} $*" >> {said}\n[ "$1" = ask ] && exit {asked}\nexit {explained}\n'
    )
    program.chmod(0o755)
    done = subprocess.run(
        [*container["command"], script.replace("/etc/tideserve/secrets/api-keys", str(keys)), *arguments],
        check=False, env={"PATH": f"{folder}:/usr/bin:/bin"},
    )  # fmt: skip
    return done.returncode, said.read_text().splitlines()


def test_the_test_pod_runs_valid_commands(tmp_path: Path) -> None:
    status, lines = _run_test_pod(tmp_path)
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    ask.add_command(commands)
    explain.add_command(commands)
    asked, explained = (parser.parse_args(line.split()) for line in lines)
    assert status == 0
    assert asked.model == "tideserve-tiny"
    assert asked.url == explained.url == "http://demo-tideserve-serve-svc:8000"
    pod = _test_pod()["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["activeDeadlineSeconds"] > asked.timeout


def test_the_test_fails_without_answer_or_with_rejected_knobs(tmp_path: Path) -> None:
    assert _run_test_pod(tmp_path, asked=1)[0] == 1
    # With knobs that were rejected `tideserve explain` exits with 1, though everything is served.
    assert _run_test_pod(tmp_path, explained=1)[0] == 1


def test_the_test_sends_the_first_key_of_the_file(tmp_path: Path) -> None:
    _, lines = _run_test_pod(tmp_path, 'apiKeys.existingSecret="clients"')
    assert [line.split()[:2] for line in lines] == [["first-key", "ask"], ["first-key", "explain"]]


def test_the_test_pod_stays_until_its_log_has_been_read() -> None:
    """`helm test --logs` reads it after the hook has ended, and fails where the pod is gone by then."""
    assert _test_pod()["metadata"]["annotations"]["helm.sh/hook-delete-policy"] == "before-hook-creation"


def test_without_a_model_that_completes_there_is_no_test() -> None:
    assert of_kind("Pod", LAPTOP, 'models.tiny.task="embed"') == []


def test_names_that_look_like_numbers_stay_text() -> None:
    names = [
        'apiKeys={"existingSecret":"12","key":"1e3"}',
        'huggingFaceToken={"existingSecret":"0x1f","key":"true"}',
        'head.priorityClassName="12"',
        'modelCache.pvc={"existingClaim":"null"}',
        'ingress.className="123"',
    ]
    cluster = ray_service(EVERYTHING, *names, release="123")["spec"]["rayClusterConfig"]
    for group in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]:
        pod = {"apiVersion": "v1", "kind": "Pod", **group["template"]}
        assert kubernetes_api.problems(pod, "1.36") == []
    for found in documents(EVERYTHING, *names, release="123"):
        if found["apiVersion"].split("/")[0] in ("v1", "batch", "networking.k8s.io", "policy"):
            assert kubernetes_api.problems(found, "1.36") == []


def test_namespaced_objects_name_their_namespace() -> None:
    for found in documents(EVERYTHING, "extraObjects=[]"):
        assert (found["metadata"].get("namespace") == "llm") is (found["kind"] != "PriorityClass")


def test_extra_objects_are_templates() -> None:
    names = [found["metadata"]["name"] for found in of_kind("ConfigMap", EVERYTHING)]
    assert "llm-note" in names


def test_the_notes_name_the_next_commands_and_what_to_know(tmp_path: Path) -> None:
    notes = _notes(tmp_path, LAPTOP)
    assert "kubectl wait --namespace llm --for=condition=Ready" in notes
    assert "rayservice/demo-tideserve" in notes
    assert "kubectl port-forward --namespace llm service/demo-tideserve-serve-svc 8000:8000" in notes
    assert '"model": "tideserve-tiny", "stream": true' in notes
    assert "helm test --namespace llm demo" in notes
    assert "tideserve explain" in notes
    assert "WARNING: apiKeys.existingSecret is empty" in notes
    assert "WARNING: monitoring.podMonitor.enabled = false" in notes
    assert len(notes.splitlines()) < 40


def test_the_notes_warn_of_the_finalizer_and_send_the_key(tmp_path: Path) -> None:
    notes = _notes(tmp_path, EVERYTHING)
    assert "until the operator gives up, 1240 s later" in notes
    assert "Authorization: Bearer $OPENAI_API_KEY" in notes
    assert "apiKeys.existingSecret is empty" not in notes


def _core(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "llm"}, **more}


_NAMES = [
    'apiKeys.existingSecret="clients"',
    'rayAuth.existingSecret="ray"',
    'image.pullSecrets=["registry"]',
    'head.priorityClassName="top"',
    'gpuProfiles.cpu.runtimeClassName="gvisor"',
]
_NAMESPACE = {"namespaces/llm/configmaps/kube-root-ca.crt": _core("ConfigMap", "kube-root-ca.crt")}


def test_the_notes_warn_about_named_objects_that_are_missing(tmp_path: Path) -> None:
    secret = _core("Secret", "clients", data={"keys": ""})
    with api_server({**_NAMESPACE, "namespaces/llm/secrets/clients": secret}) as address:
        notes = _notes(tmp_path, LAPTOP, *_NAMES, cluster=address)
    assert 'apiKeys.existingSecret = "clients": that Secret has no key "api-keys"; it has keys.' in notes
    assert 'rayAuth.existingSecret = "ray": namespace llm has no such Secret.' in notes
    assert 'image.pullSecrets[0] = "registry": namespace llm has no such Secret.' in notes
    assert 'head.priorityClassName = "top": the cluster has no such PriorityClass.' in notes
    assert 'gpuProfiles.cpu.runtimeClassName = "gvisor": the cluster has no such RuntimeClass.' in notes


def test_the_notes_warn_only_about_missing_objects(tmp_path: Path) -> None:
    there = {
        **_NAMESPACE,
        "namespaces/llm/secrets/clients": _core("Secret", "clients", data={"api-keys": ""}),
        "namespaces/llm/secrets/ray": _core("Secret", "ray", data={"auth_token": ""}),
        "namespaces/llm/secrets/registry": _core("Secret", "registry"),
        "priorityclasses/top": {
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "top"},
        },
        "runtimeclasses/gvisor": {
            "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "gvisor"},
        },
    }  # fmt: skip
    with api_server(there) as address:
        assert "no such" not in _notes(tmp_path / "asked", LAPTOP, *_NAMES, cluster=address)
    assert "no such" not in _notes(tmp_path / "alone", LAPTOP, *_NAMES)


def _notes(folder: Path, values: Path, *sets: str, cluster: str = "") -> str:
    """NOTES.txt, which `helm template` does not print, by way of an object that holds it."""
    chart = folder / "tideserve"
    shutil.copytree(CHART, chart)
    text = (chart / "templates/NOTES.txt").read_text(encoding="utf-8")
    (chart / "templates/_notes.tpl").write_text(
        '{{- define "notes" }}' + text + "{{ end }}", encoding="utf-8"
    )
    (chart / "templates/notes.yaml").write_text('notes: {{ include "notes" . | toJson }}', encoding="utf-8")
    arguments = ["demo", str(chart), "--namespace", "llm", "--values", str(values)]
    for setting in sets:
        arguments += ["--set-json", setting]
    if cluster:
        arguments += ["--dry-run=server", "--kube-apiserver", cluster]
    done = helm("template", *arguments, "--show-only", "templates/notes.yaml")
    assert done.returncode == 0, done.stderr
    return str(yaml.safe_load(done.stdout)["notes"])
