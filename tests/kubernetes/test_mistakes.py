"""Mistakes in values that Helm, and mostly the API server, would let through, and pods would never come."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kubernetes.chart import A100, refusal, rendered
from tests.kubernetes.tools import CHART

MISTAKES: dict[str, list[dict[str, str]]] = yaml.safe_load(
    (Path(__file__).parent / "mistakes.yaml").read_text(encoding="utf-8")
)
FINE = [
    'image.repository="tideserve"',
    'image.repository="localhost:5000/team/tideserve"',
    'image.repository="123456789012.dkr.ecr.eu-central-1.amazonaws.com/team/tide__serve"',
    'image.tag="sha-0123456_x.y"',
    'head.tolerations=[{"operator":"Exists"},{"key":"a","value":"b"},{"key":"a.b/c","operator":"Exists"}]',
    'head.tolerations=[{"key":"a","operator":"Exists","effect":"NoExecute","tolerationSeconds":30}]',
    'gpuProfiles.a100-80gb.gpuResource="amd.com/gpu"',
    'gpuProfiles.a100-80gb.gpuResource="nvidia.com/mig-1g.5gb"',
    'gpuProfiles.a100-80gb.perGpu={"cpu":10,"memory":"1Ti","shm":"512Mi"}',
    'head.resources={"requests":{"cpu":0.5,"memory":"2000Mi"},"limits":{"cpu":"1500m","memory":"6Gi"}}',
    'head.resources={"requests":{"cpu":"1","memory":"2G","ephemeral-storage":"1Gi"},"limits":null}',
    'extraEnv=[{"name":"A.b-C_1","value":""},{"name":"B","valueFrom":{"fieldRef":{"fieldPath":"status.podIP"}}}]',
    'extraEnv=[{"name":"B","valueFrom":{"fieldRef":{"fieldPath":"metadata.labels[\'a.b/c\']"}}}]',
    'extraVolumes=[{"name":"ca","secret":{"secretName":"ca.v2"}}]',
    'extraVolumeMounts=[{"name":"tmp","mountPath":"/var/log","subPath":".cache/log"}]',
    'securityContext={"runAsUser":2000,"capabilities":{"add":["SYS_PTRACE"]}}',
    'podSecurityContext={"runAsUser":0,"runAsNonRoot":false}',
    'ingress={"enabled":true,"hosts":["*.llm.example.org","localhost"]}',
    'networkPolicy.clients=[{"ipBlock":{"cidr":"10.0.0.0/8","except":["10.1.0.0/16"]}},{"ipBlock":{"cidr":"fd00::/8"}}]',
    'networkPolicy.egress={"enabled":true,"to":[{"ports":[{"port":"https"},{"port":443,"endPort":444}]}]}',
    'gcsFaultTolerance={"enabled":true,"redisAddress":"rediss://redis.data.svc:6380"}',
    'monitoring.prometheusRule.selector="job=\\"llm/tide\\", cluster=~\\"eu.*\\","',
    'modelCache.hostPath.path="/mnt/.models/x"',
    'modelCache.pvc.size="1.5Ti"',
    'tmpSizeLimit="2048Mi"',
    "engineWorkers.topologySpreadConstraints=[]",
    "ingressWorkers.topologySpreadConstraints=[]",
]


def _place(mistake: dict[str, str]) -> str:
    """What a mistake is about: CPUs and memory of pods are compared with each other."""
    key = mistake["set"].partition("=")[0]
    if re.match(r"(app\.ingress|ingressWorkers\.(resources|maxWorkers))\b", key):
        return "the ingress's sizes"
    if key in ("extraVolumes", "extraVolumeMounts"):
        return "volumes"
    if key in ("priorityClass", "engineWorkers.priorityClassName"):
        return "the priority of engines"
    if key in ("nameOverride", "fullnameOverride"):
        return "the name"
    return ".".join(key.split(".")[:3])


def _together(mistakes: list[dict[str, str]]) -> list[list[dict[str, str]]]:
    """Groups whose keys do not lie within each other: all problems are told at once."""
    groups: list[list[dict[str, str]]] = []
    for mistake in mistakes:
        key = _place(mistake)
        for group in groups:
            others = [_place(other) for other in group]
            if not any(f"{key}.".startswith(f"{o}.") or f"{o}.".startswith(f"{key}.") for o in others):
                group.append(mistake)
                break
        else:
            groups.append([mistake])
    return groups


@pytest.mark.parametrize("kind", MISTAKES)
def test_every_mistake_is_refused_with_its_key_its_value_and_the_bound(kind: str) -> None:
    silent: list[str] = []
    for group in _together(MISTAKES[kind]):
        said = refusal(A100, *(mistake["set"] for mistake in group))
        silent += [mistake["set"] for mistake in group if mistake["says"] not in said]
    assert silent == []


def test_a_mistake_alone_is_refused_too() -> None:
    """One of each kind: together, one might be refused for another's sake."""
    for mistakes in MISTAKES.values():
        assert mistakes[0]["says"] in refusal(A100, mistakes[0]["set"])


def test_what_kubernetes_takes_is_taken() -> None:
    for group in _together([{"set": setting} for setting in FINE]):
        assert rendered(A100, *(fine["set"] for fine in group))


def test_the_table_has_mistakes_of_every_part_of_the_values() -> None:
    values: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    hit = {
        mistake["set"].partition(".")[0].partition("=")[0] for kind in MISTAKES.values() for mistake in kind
    }
    switches = {"fastDataPath", "initializingTimeoutSeconds", "rbac", "podDisruptionBudget"}
    times = {"preStopSeconds", "terminationGracePeriodSeconds", "service"}
    assert values.keys() - hit - switches - times == set()
