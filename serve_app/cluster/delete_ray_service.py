"""Delete a RayService, and wait until the operator has removed its clusters. The chart's pre-delete hook.

    python -m serve_app.cluster.delete_ray_service --namespace llm --timeout 330 NAME

With fault tolerance the operator clears Redis with a Job that needs the head's service account and the token
of the cluster. Helm deletes the account, and a foreground deletion deletes the token before the Job runs. So
this program deletes in the background, and Helm waits for it. Needs the `kubernetes` extra, and a service
account that may delete the RayService and list RayClusters. The exit status is 1 if a cluster stays.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

OWNER_LABEL = "ray.io/originated-from-cr-name"
INTERVAL_S = 1.0
_REQUEST_TIMEOUT_S = 10.0


def delete_and_wait(
    api: Any,
    namespace: str,
    name: str,
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> list[str]:
    """Delete a RayService that may be gone, and return the RayClusters that are left after `timeout_s`.

    `api` is a `CustomObjectsApi`. A failed list is tried again, unless it is forbidden. Other errors of the
    API server are raised.
    """
    from kubernetes.client.exceptions import ApiException  # noqa: PLC0415
    from urllib3.exceptions import HTTPError  # noqa: PLC0415

    place = ("ray.io", "v1", namespace)
    options = {"_request_timeout": _REQUEST_TIMEOUT_S}
    end = clock() + timeout_s
    try:
        api.delete_namespaced_custom_object(
            *place, "rayservices", name, propagation_policy="Background", **options
        )
    except ApiException as error:
        if error.status != 404:
            raise
    left = ["unknown: the API server did not answer"]
    while True:
        try:
            reply = api.list_namespaced_custom_object(
                *place, "rayclusters", label_selector=f"{OWNER_LABEL}={name}", **options
            )
            left = [_described(cluster) for cluster in reply["items"]]
        except (ApiException, HTTPError, OSError) as error:
            if isinstance(error, ApiException) and error.status == 403:
                raise
            print(f"cannot list RayClusters: {error}", file=sys.stderr)
        if not left or clock() >= end:
            return left
        sleep(INTERVAL_S)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program with the account of its pod, and return the exit status."""
    from kubernetes import client, config  # noqa: PLC0415

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--timeout", type=float, required=True, metavar="SECONDS")
    parser.add_argument("name")
    options = parser.parse_args(argv)
    config.load_incluster_config()
    left = delete_and_wait(client.CustomObjectsApi(), options.namespace, options.name, options.timeout)
    if left:
        print(
            f"after {options.timeout:g} s these RayClusters are left: {', '.join(left)}. If Redis or the "
            "operator is gone, remove the finalizers: docs/kubernetes.md, GCS fault tolerance.",
            file=sys.stderr,
        )
    return 1 if left else 0


def _described(cluster: dict[str, Any]) -> str:
    metadata = cluster["metadata"]
    finalizers = metadata.get("finalizers")
    return f"{metadata['name']} (finalizers {json.dumps(finalizers)})" if finalizers else metadata["name"]


if __name__ == "__main__":
    sys.exit(main())
