"""The deletion of a RayService against an API server of HTTP."""

import json
from collections.abc import Callable
from urllib.parse import unquote

import pytest

from serve_app.cluster.delete_ray_service import delete_and_wait
from tests.http_server import Answer, serving

client = pytest.importorskip("kubernetes.client")

PLACE = "/apis/ray.io/v1/namespaces/llm"
CLUSTER = {"metadata": {"name": "llm-x", "finalizers": ["ray.io/gcs-ft-redis-cleanup-finalizer"]}}


def run(answer: Callable[[str, str, bytes], Answer]) -> list[str]:
    """The RayClusters that are left after ten seconds of a clock that only sleeping moves."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    with serving(answer) as address:
        configuration = client.Configuration(host=address)
        configuration.retries = False
        api = client.CustomObjectsApi(client.ApiClient(configuration))
        return delete_and_wait(api, "llm", "llm", 10.0, lambda: now[0], sleep)


@pytest.mark.parametrize("deleted", [200, 404])
def test_waits_until_the_operator_has_removed_the_clusters(deleted: int) -> None:
    lists = iter([(200, {"items": [CLUSTER]}), (503, {}), (200, {"items": [CLUSTER]}), (200, {"items": []})])
    asked: list[tuple[str, str, bytes]] = []

    def answer(method: str, url: str, body: bytes) -> Answer:
        asked.append((method, url, body))
        return (deleted, {}) if method == "DELETE" else next(lists)

    assert run(answer) == []
    method, url, _ = asked[0]
    # A foreground deletion would delete the token before the Job that needs it.
    assert (method, url) == ("DELETE", f"{PLACE}/rayservices/llm?propagationPolicy=Background")
    assert {unquote(url) for _, url, _ in asked[1:]} == {
        f"{PLACE}/rayclusters?labelSelector=ray.io/originated-from-cr-name=llm"
    }


def test_names_the_cluster_that_stays_and_its_finalizer() -> None:
    left = run(lambda method, url, body: (200, {} if method == "DELETE" else {"items": [CLUSTER]}))
    assert left == [f"llm-x (finalizers {json.dumps(CLUSTER['metadata']['finalizers'])})"]


@pytest.mark.parametrize("forbidden", ["DELETE", "GET"])
def test_missing_rights_are_an_error_at_once(forbidden: str) -> None:
    with pytest.raises(client.exceptions.ApiException, match="403"):
        run(lambda method, url, body: (403, {}) if method == forbidden else (200, {}))
