"""Keep the head pod running while workers drain, because they need its GCS and Ray Serve's controller.

    python -m serve_app.cluster.head_pod_shutdown --address 127.0.0.1:6379 --notice 15 --timeout 45

When the cluster is removed, all its pods stop at the same time. Without the GCS a worker cannot report that
it drains. Without the controller its replicas do not stop when their streams have ended. When only the node
of the head is drained, no worker drains, and the wait ends after the notice.
"""

import argparse
import time
from collections.abc import Callable

_POLL_S = 0.5


def wait_for_workers(
    count: Callable[[], int],
    notice_s: float,
    timeout_s: float,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Wait until `count`, the number of workers that drain, is 0, and return why the wait ended.

    A worker that stops too reports it within `notice_s` seconds.
    """
    began, seen = now(), 0
    while (waited := now() - began) < timeout_s:
        draining = count()
        if seen and not draining:
            return f"all workers had drained after {waited:.0f} s"
        if not seen and not draining and waited >= notice_s:
            return f"no worker drains, {waited:.0f} s after the head was told to stop"
        seen = max(seen, draining)
        sleep(_POLL_S)
    return f"workers still draining after {timeout_s:.0f} s: {seen}; they end by themselves"


def _draining(address: str) -> Callable[[], int]:
    from ray._raylet import GcsClient  # type: ignore[attr-defined]  # noqa: PLC0415 - Ray takes half a second
    from ray.autoscaler.v2.sdk import get_cluster_resource_state  # noqa: PLC0415
    from ray.core.generated.autoscaler_pb2 import NodeStatus  # noqa: PLC0415

    client = GcsClient(address=address)
    return lambda: sum(
        node.status == NodeStatus.DRAINING for node in get_cluster_resource_state(client).node_states
    )


def main() -> None:
    """Wait, and print why the wait has ended."""
    parser = argparse.ArgumentParser(description="Wait until no worker of a Ray cluster drains.")
    parser.add_argument("--address", required=True, help="of the GCS, as host:port")
    parser.add_argument("--notice", type=float, required=True, metavar="SECONDS")
    parser.add_argument("--timeout", type=float, required=True, metavar="SECONDS")
    options = parser.parse_args()
    print(wait_for_workers(_draining(options.address), options.notice, options.timeout), flush=True)


if __name__ == "__main__":
    main()
