"""Values that contradict each other, or that the operator would refuse: a sentence instead of objects."""

import json

import pytest

from tests.kubernetes.chart import A100, LAPTOP, documents, refusal
from tests.kubernetes.tools import CHART

REFUSED = {
    "no image": (A100, ['image.repository=""'], "image.repository is required: no image is published"),
    "no model": (LAPTOP, ["models=null"], "models is empty: name at least one"),
    "a profile that is not there": (
        A100,
        ['models.llama-8b.gpuProfile="b200"'],
        'models.llama-8b.gpuProfile = "b200" is none of gpuProfiles: a100-40gb, a100-80gb, a10g, cpu',
    ),
    "two models of one name": (
        A100,
        ['models.other={"gpuProfile":"h100","name":"llama-3.1-8b-instruct"}'],
        'models.other.name = "llama-3.1-8b-instruct" is the name of models.llama-8b too',
    ),
    "bounds the wrong way round": (
        A100,
        ["models.llama-8b.autoscaling.min_replicas=9"],
        "models.llama-8b.autoscaling.min_replicas = 9 is above max_replicas = 8",
    ),
    "a minimum above the default maximum": (
        A100,
        ['models.other={"gpuProfile":"h100","autoscaling":{"min_replicas":2}}'],
        "models.other.autoscaling.min_replicas = 2 is above max_replicas = 1",
    ),
    "a schedule above the maximum": (
        A100,
        ['models.llama-8b.autoscaling.schedules=[{"start":"08:00","end":"18:00","min_replicas":9}]'],
        "models.llama-8b.autoscaling.schedules[0].min_replicas = 9 is above max_replicas = 8",
    ),
    "more replicas than pods": (
        A100,
        ["models.llama-8b.autoscaling.max_replicas=9"],
        "models llama-8b may want 9 replicas, and gpuProfiles.a100-80gb.maxWorkers = 8 pods hold 8",
    ),
    "more CPUs than the pods have": (
        LAPTOP,
        ["models.tiny.autoscaling.max_replicas=8"],
        "models tiny may want 3.2 CPUs, and gpuProfiles.cpu.maxWorkers = 3 pods hold 3",
    ),
    "a replica larger than its pod": (
        LAPTOP,
        ["models.tiny.cpus_per_replica=1.5"],
        "models.tiny.cpus_per_replica = 1.5 is above the 1 CPUs of its pod",
    ),
    "more GPUs than a node has": (
        A100,
        ["models.llama-8b.tensor_parallel_size=16"],
        "models.llama-8b.tensor_parallel_size = 16 is above gpuProfiles.a100-80gb.gpusPerNode = 8",
    ),
    "a CPU profile with GPUs": (
        LAPTOP,
        ["gpuProfiles.cpu.gpusPerNode=1"],
        "gpuProfiles.cpu.gpusPerNode = 1 must be absent with device = cpu",
    ),
    "a GPU profile that does not say what a GPU brings along": (
        A100,
        ["gpuProfiles.a100-80gb.perGpu=null"],
        "gpuProfiles.a100-80gb.perGpu is required with device = gpu",
    ),
    "tensor parallel without GPUs": (
        LAPTOP,
        ["models.tiny.tensor_parallel_size=2"],
        'models.tiny.tensor_parallel_size = 2 must be 1 on gpuProfile "cpu"',
    ),
    "more pods always than ever": (
        A100,
        ["gpuProfiles.a100-80gb.minWorkers=9"],
        "gpuProfiles.a100-80gb.minWorkers = 9 is above maxWorkers = 8",
    ),
    "a profile with the name of another group": (
        LAPTOP,
        [
            'gpuProfiles.ingress={"device":"cpu","perPod":{"cpu":"1","memory":"1Gi","shm":"1Gi"},'
            '"minWorkers":0,"maxWorkers":1,"idleTimeoutSeconds":60}'
        ],
        "gpuProfiles.ingress must have another name",
    ),
    "a profile with the name of the head's group": (
        LAPTOP,
        [
            'gpuProfiles.headgroup={"device":"cpu","perPod":{"cpu":"1","memory":"1Gi","shm":"1Gi"},'
            '"minWorkers":0,"maxWorkers":1,"idleTimeoutSeconds":60}'
        ],
        "gpuProfiles.headgroup must have another name",
    ),
    "two profiles with one worker group": (
        A100,
        [
            'gpuProfiles.l4-x2={"device":"gpu","accelerator_type":"L4","gpuResource":"nvidia.com/gpu",'
            '"gpusPerNode":1,"perGpu":{"cpu":"1","memory":"1Gi","shm":"1Gi"},'
            '"minWorkers":0,"maxWorkers":1,"idleTimeoutSeconds":60}',
            'models.one={"gpuProfile":"l4-x2"}',
            'models.two={"gpuProfile":"l4","tensor_parallel_size":2}',
        ],
        'gpuProfiles.l4-x2 and gpuProfiles.l4 would both have the worker group "l4-x2"',
    ),
    "ingress pods without a number of CPUs": (
        A100,
        ["ingressWorkers.resources=null"],
        "ingressWorkers.resources.requests.cpu is required",
    ),
    "a label by which KubeRay finds the head": (
        A100,
        ['head.podLabels={"app.kubernetes.io/name":"llm"}'],
        "head.podLabels sets app.kubernetes.io/name, which it must not",
    ),
    "a label by which budgets find engines": (
        A100,
        ['engineWorkers.podLabels={"ray.io/group":"mine"}'],
        "engineWorkers.podLabels sets ray.io/group, which it must not",
    ),
    "more ingress pods always than ever": (
        A100,
        ["ingressWorkers.minWorkers=5"],
        "ingressWorkers.minWorkers = 5 is above maxWorkers = 4",
    ),
    "a queue target that no queue reaches": (
        A100,
        ["models.llama-8b.max_ongoing_requests=4"],
        "models.llama-8b.autoscaling.queue_target_per_replica = 8 is above max_ongoing_requests = 4",
    ),
    "a stream target that no ingress reaches": (
        A100,
        ["app.ingress.max_ongoing_requests=100"],
        "target_ongoing_requests = 200 is above app.ingress.max_ongoing_requests = 100",
    ),
    "a model that drains longer than its pod lives": (
        A100,
        ["models.llama-8b.drain_timeout_s=601"],
        "models.llama-8b.drain_timeout_s = 601 is above app.drain_timeout_s = 600",
    ),
    "a grace period that cuts streams": (
        A100,
        ["terminationGracePeriodSeconds=639"],
        "terminationGracePeriodSeconds = 639 is below the 640 that preStopSeconds, app.drain_timeout_s = 600",
    ),
    "a head that ends before workers have said that they drain": (
        A100,
        ["preStopSeconds=41"],
        "head.terminationGracePeriodSeconds = 60 is below the 61 that preStopSeconds = 41 and 20 s to end",
    ),
    "a token turned off by a variable": (
        A100,
        ['extraEnv=[{"name":"RAY_AUTH_MODE","value":"disabled"}]'],
        "extraEnv sets RAY_AUTH_MODE, which it must not: the operator sets it",
    ),
    "an incremental upgrade without a gateway": (
        A100,
        ['upgradeStrategy.type="NewClusterWithIncrementalUpgrade"'],
        "upgradeStrategy.gatewayClassName is required with type = NewClusterWithIncrementalUpgrade",
    ),
    "the autoscaler's version by a variable": (
        A100,
        ['extraEnv=[{"name":"RAY_enable_autoscaler_v2","value":"1"}]'],
        "extraEnv sets RAY_enable_autoscaler_v2, which it must not",
    ),
    "Redis by a variable": (
        A100,
        ['head.env=[{"name":"RAY_REDIS_ADDRESS","value":"redis:6379"}]'],
        "head.env sets RAY_REDIS_ADDRESS, which it must not: set gcsFaultTolerance.redisAddress",
    ),
    "a token by a variable of a profile": (
        A100,
        ['gpuProfiles.l4.env=[{"name":"HF_TOKEN","value":"hf_x"}]'],
        "gpuProfiles.l4.env sets HF_TOKEN, which it must not: set huggingFaceToken.existingSecret",
    ),
    "a long name": (
        A100,
        ['fullnameOverride="' + "a" * 48 + '"'],
        "has 48 characters, and a RayService may have 47: set fullnameOverride",
    ),
    "a name that begins with a digit": (
        A100,
        ['fullnameOverride="8b"'],
        'the name "8b" must begin with a letter',
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_contradictions_are_refused_with_a_sentence(case: str) -> None:
    values, sets, sentence = REFUSED[case]
    assert sentence in refusal(values, *sets)


EMPTY = [
    "app.http=null",
    "extraEnv=null",
    "head.tolerations=null",
    "ingress.annotations=null",
    "ingressWorkers.nodeSelector=null",
    "monitoring.dashboards.labels=null",
    "monitoring.dashboards.folder=null",
    "networkPolicy.clients=null",
    "podSecurityContext=null",
    "securityContext=null",
]


def test_null_is_as_good_as_empty_where_a_value_may_be_empty() -> None:
    documents(CHART / "ci/everything-values.yaml", *EMPTY)


def test_every_problem_is_told_at_once() -> None:
    said = refusal(A100, 'image.repository=""', "models.llama-8b.autoscaling.min_replicas=9")
    assert "image.repository is required" in said
    assert "min_replicas = 9 is above" in said


def test_a_release_name_that_is_too_long_is_refused() -> None:
    assert "the name" in refusal(A100, release="r" * 40)


def test_a_name_of_47_characters_is_not() -> None:
    assert "may have 47" not in refusal(
        A100, f"fullnameOverride={json.dumps('a' * 47)}", 'image.repository=""'
    )
