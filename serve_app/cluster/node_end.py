"""The announced end of a node: who announces it, and who reads it.

    python -m serve_app.cluster.node_end --in 30

announces that the node of this address ends in 30 s. A pod's preStop hook calls it, or a handler of a cloud's
notice. The announcement is a drain of the node in Ray's GCS, with a deadline. Ray places no more replicas
there, Ray Serve drains the node's replicas, and the policy asks for others.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from typing import Any

_RPC_S = 2.0
_LONGEST_S = 86_400.0
_REASON = "DRAIN_NODE_REASON_PREEMPTION"


def draining_nodes(client: Any | None = None) -> Mapping[str, float]:
    """Return the end of each node whose end is announced, as Unix time in seconds, by Ray's name of the node.

    A node that drains without a deadline is left out: its replicas end when their streams have ended.
    """
    if client is None:
        from ray._private.worker import global_worker  # noqa: PLC0415 - only processes of Ray have it

        client = global_worker.gcs_client
    return {
        node: deadline_ms / 1000.0
        for node, deadline_ms in client.get_draining_nodes(timeout=_RPC_S).items()
        if deadline_ms
    }


def announce_end(client: Any, nodes: Sequence[str], in_s: float, why: str) -> None:
    """Announce that `nodes` end in `in_s` seconds.

    Raises:
        RuntimeError: Ray does not accept the drain of a node.
    """
    from ray.core.generated import autoscaler_pb2  # noqa: PLC0415 - Ray takes half a second

    reason = autoscaler_pb2.DrainNodeReason.Value(_REASON)
    deadline_ms = int((time.time() + in_s) * 1000)
    for node in nodes:
        accepted, refusal = client.drain_node(node, reason, why, deadline_ms)
        if not accepted:
            raise RuntimeError(f"Ray does not drain node {node}: {refusal}")


def nodes_of(client: Any, address: str) -> list[str]:
    """Return Ray's names of the living nodes at `address`."""
    alive = 0  # GcsNodeInfo.ALIVE
    return [
        node_id.hex() if hasattr(node_id, "hex") else str(node_id)
        for node_id, node in client.get_all_node_info(timeout=_RPC_S).items()
        if node.state == alive and node.node_manager_address == address
    ]


def _seconds(text: str) -> float:
    if not 0.0 <= (seconds := float(text)) <= _LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text}: must be 0 to {_LONGEST_S:g} seconds")
    return seconds


def main(arguments: Sequence[str] | None = None) -> None:
    """Announce the end of this machine's node, or of `--node`. With `--wait`, wait until then."""
    from ray._private.services import canonicalize_bootstrap_address_or_die, get_node_ip_address  # noqa: PLC0415
    from ray._raylet import GcsClient  # type: ignore[attr-defined]  # noqa: PLC0415

    parser = argparse.ArgumentParser(description="Announce that a node of a Ray cluster is about to end.")
    parser.add_argument("--in", dest="in_s", type=_seconds, required=True, metavar="SECONDS")
    parser.add_argument("--address", help="of the GCS, as host:port; by default that of this machine's node")
    parser.add_argument("--node", action="append", help="Ray's name of the node; repeatable")
    parser.add_argument("--why", default="its machine is taken away")
    parser.add_argument("--wait", action="store_true", help="return when the time is over")
    options = parser.parse_args(arguments)
    client = GcsClient(address=canonicalize_bootstrap_address_or_die(options.address))
    nodes = options.node or nodes_of(client, get_node_ip_address())
    if not nodes:
        parser.exit(1, "No node of this address is alive.\n")
    announce_end(client, nodes, options.in_s, options.why)
    print(f"{', '.join(nodes)}: ends in {options.in_s:g} s", flush=True)
    if options.wait:
        time.sleep(options.in_s)


if __name__ == "__main__":
    main()
