"""Values that the objects around the RayService cannot work with are refused, in a sentence."""

import pytest

from tests.kubernetes.chart import A100, LAPTOP, refusal, rendered

REFUSED = {
    "a claim for one node, and many pods": (
        ['modelCache={"type":"pvc","pvc":{"accessMode":"ReadWriteOnce"}}'],
        "modelCache.pvc.accessMode = ReadWriteOnce lets one node mount the claim, and ",
    ),
    "a folder of the node that is no absolute path": (
        ['modelCache={"type":"hostPath","hostPath":{"path":"models"}}'],
        'modelCache.hostPath.path = "models" must be an absolute path below /',
    ),
    "the node's whole disk": (
        ['modelCache={"type":"hostPath","hostPath":{"path":"/"}}'],
        'modelCache.hostPath.path = "/" must be an absolute path below /',
    ),
    "a cache within another volume": (
        ['modelCache={"type":"hostPath","mountPath":"/tmp/models"}'],
        'modelCache.mountPath = "/tmp/models" must not be in /tmp',
    ),
    "a route that belongs to no gateway": (
        ["gateway.enabled=true"],
        "gateway.parentRefs is empty with gateway.enabled = true",
    ),
    "an Ingress that an incremental upgrade goes around": (
        [
            "ingress.enabled=true",
            'upgradeStrategy={"type":"NewClusterWithIncrementalUpgrade","gatewayClassName":"x"}',
        ],
        "ingress.enabled = true must be false with upgradeStrategy.type = NewClusterWithIncrementalUpgrade",
    ),
    "a network policy that locks the operator out": (
        ["networkPolicy.operator=[]"],
        "networkPolicy.operator is empty with networkPolicy.enabled = true",
    ),
    "a network policy that locks the autoscaler in": (
        ["networkPolicy.egress.enabled=true"],
        "networkPolicy.egress.to is empty with networkPolicy.egress.enabled = true",
    ),
    "rights for every pod of the namespace": (
        ["serviceAccount.create=false", "rbac.nodeAwareness=false"],
        "serviceAccount.name is empty with serviceAccount.create = false: the operator would let",
    ),
    "the workers' account for the head": (
        ['serviceAccount.name="demo-tideserve-worker"'],
        'serviceAccount.name = "demo-tideserve-worker" is the name of the workers\' account',
    ),
    "a priority class that nobody uses": (
        ["priorityClass.create=true"],
        "engineWorkers.priorityClassName is empty with priorityClass.create = true",
    ),
    "a priority class with a name of Kubernetes": (
        ["priorityClass.create=true", 'engineWorkers.priorityClassName="system-x"'],
        'engineWorkers.priorityClassName = "system-x" must not begin with system-',
    ),
    "a budget that no drain gets past": (
        ["podDisruptionBudget.maxUnavailable=0"],
        "podDisruptionBudget.maxUnavailable = 0 must be at least 1",
    ),
    "fault tolerance without Redis": (
        ["gcsFaultTolerance.enabled=true"],
        "gcsFaultTolerance.redisAddress is empty with gcsFaultTolerance.enabled = true",
    ),
    "a user name from no Secret": (
        ['gcsFaultTolerance={"enabled":true,"redisAddress":"redis:6379","usernameKey":"user"}'],
        'gcsFaultTolerance.usernameKey = "user" is a key of gcsFaultTolerance.existingSecret, which is empty',
    ),
    "a test of a model that is not served": (
        ['tests.model="none"'],
        'tests.model = "none" is none of the models: ',
    ),
    "a test of a model that completes nothing": (
        ['models.e={"gpuProfile":"cpu","model":"org/e","task":"embed"}', 'tests.model="e"'],
        'tests.model = "e" has task = embed',
    ),
    "two names that are one deployment": (
        ['models={"a":{"gpuProfile":"cpu","name":"x.y"},"b":{"gpuProfile":"cpu","name":"x:y"}}'],
        'models.b.name = "x:y" and "x.y" are the same deployment to Ray Serve, Engine-x-y',
    ),
}


@pytest.mark.parametrize(("sets", "sentence"), REFUSED.values(), ids=REFUSED)
def test_refused(sets: list[str], sentence: str) -> None:
    assert sentence in _unwrapped(refusal(LAPTOP, *sets))


def test_every_problem_is_told_at_once() -> None:
    told = _unwrapped(refusal(A100, "networkPolicy.operator=[]", 'tests.model="none"'))
    assert "networkPolicy.operator is empty" in told
    assert "tests.model = " in told


def test_a_claim_for_one_node_serves_one_pod() -> None:
    one = [
        "gpuProfiles.cpu.maxWorkers=1",
        "models.tiny.autoscaling.max_replicas=1",
        'modelCache={"type":"pvc","pvc":{"accessMode":"ReadWriteOnce"}}',
    ]
    assert "accessModes: [ReadWriteOnce]" in rendered(LAPTOP, *one)


def _unwrapped(text: str) -> str:
    return " ".join(text.split())
