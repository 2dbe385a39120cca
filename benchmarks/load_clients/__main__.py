"""`python -m benchmarks.load_clients`: see README.md beside this file."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.common.markdown import table
from benchmarks.common.process_tree import cpu_s, tree
from benchmarks.common.server_process import HOST
from benchmarks.load_clients.clients import clients
from benchmarks.load_clients.job import Client, Job, Planned, poisson
from benchmarks.load_clients.measure import Usage, errors, lags, run, stub, truths
from serve_app.cli.listening import free_port

_AFTER_S = 180.0
"""For starting, for the last replies, and for the client's own report."""
TROUBLES: Mapping[str, Mapping[str, object]] = {
    "comments": {"comments_s": 3.0},
    "error_frame": {"fail": "error_frame", "fail_after_tokens": 5},
    "error_frame_first": {"fail": "error_frame", "comments_s": 1.5},
    "cut": {"fail": "cut", "fail_after_tokens": 5},
    "429": {"fail": "429", "fail_times": 1},
    "503": {"fail": "503", "fail_times": 1},
    "cancel": {},
}
_CANCEL_S = 0.3


def main(argv: list[str]) -> int:
    """0, or 2 for a wrong command line."""
    given = _parse(argv)
    known = clients(given.environments)
    given.directory.mkdir(parents=True, exist_ok=True)
    chosen = [known[name] for name in given.clients.split(",")]
    if given.troubles:
        for client in chosen:
            for trouble, script in TROUBLES.items():
                print(_trouble(client, trouble, script, given.directory), flush=True)
        return 0
    rows = []
    planned = poisson(given.rate, given.seconds, given.tokens)
    for _ in range(given.repeat):
        for client in chosen:
            rows.append(_load(client, planned, given.directory))
            print(table(_HEADER, rows[-1:]), flush=True)
    print("\n" + table(_HEADER, rows))
    return 0


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.load_clients",
        description="How well load generators keep a schedule and time a stream.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--environments", type=Path, required=True, help="where their environments are")
    parser.add_argument("--clients", default="tideserve,aiperf,guidellm,vllm-bench,locust")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()) / "load_clients")
    parser.add_argument("--rate", type=float, default=20.0, help="requests per second")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--tokens", type=int, default=250, help="of each reply")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--troubles", action="store_true", help="ten requests of each trouble instead")
    given = parser.parse_args(argv)
    given.environments, given.directory = given.environments.resolve(), given.directory.resolve()
    unknown = set(given.clients.split(",")) - set(clients(given.environments))
    if unknown:
        parser.error(f"--clients: {', '.join(sorted(unknown))}: must be of {', '.join(clients(Path()))}")
    return given


_HEADER = (
    *("client", "load avg", "exit", "requests", "lag P50/P99/max ms", "TTFT err P50/P95/P99 ms"),
    *("ITL err ms", "mean ITL err ms", "CPU s", "of it startup", "stub CPU s", "RSS MiB", "PSS MiB"),
    *("startup s", "after s"),
)


def _load(client: Client, planned: Sequence[Planned], directory: Path) -> list[str]:
    load = os.getloadavg()[0]
    job, log, usage, server_cpu_s = _one(client, planned, directory, "load", {}, None)
    found, seen = truths(log), client.seen(job)
    late, apart = lags(job, found), errors(found, seen)
    first = min(truth.arrived_s for truth in found)
    last = max(truth.arrived_s + (truth.ttft_s or 0.0) + sum(truth.gaps_s) for truth in found)

    def milliseconds(values: Sequence[float] | None) -> str:
        return "-" if values is None else "/".join(f"{value * 1e3:+.2f}" for value in values)

    return [
        client.name,
        f"{load:.2f}",
        str(usage.exit_code),
        f"{sum(truth.outcome == 'done' for truth in found)}/{len(planned)}",
        "/".join(f"{value * 1e3:.1f}" for value in np.percentile(late, (50, 99, 100)).tolist()),
        *(milliseconds(apart[name]) for name in ("ttft", "itl", "mean itl")),
        *(f"{value:.1f}" for value in (usage.cpu_s, usage.startup_cpu_s, server_cpu_s)),
        *(f"{value / 2**20:.0f}" for value in (usage.peak_rss, usage.peak_pss)),
        f"{first - usage.started_s - planned[0].at_s:.1f}",
        f"{usage.ended_s - last:.1f}",
    ]


def _one(
    client: Client,
    planned: Sequence[Planned],
    directory: Path,
    name: str,
    script: Mapping[str, object],
    cancel_after_s: float | None,
) -> tuple[Job, Path, Usage, float]:
    port = free_port()
    where = Path(tempfile.mkdtemp(prefix=f"{client.name}-{name}-", dir=directory))
    job = Job(f"http://{HOST}:{port}", planned, where, script, cancel_after_s)
    log = where / "served.jsonl"
    with stub(port, log) as server:
        usage = run(client, job, log, planned[-1].at_s + _AFTER_S)
        server_cpu_s = cpu_s(tree(server.pid))
    return job, log, usage, server_cpu_s


def _trouble(client: Client, trouble: str, script: Mapping[str, object], directory: Path) -> str:
    """What the server did and what the client made of it, as one line of JSON."""
    planned = [Planned(0.2 * order, f"{order}: tell me about the tide", 20) for order in range(10)]
    cancel_after_s = _CANCEL_S if trouble == "cancel" else None
    line: dict[str, object] = {"client": client.name, "trouble": trouble}
    try:
        job, log, usage, _ = _one(client, planned, directory, trouble, script, cancel_after_s)
    except subprocess.TimeoutExpired as error:
        return json.dumps({**line, "ended": f"not within {error.timeout:.0f} s"})
    found = truths(log)
    line["exit"], line["requests"] = usage.exit_code, len(found)
    line["served"] = sorted({(truth.outcome, truth.tokens, truth.comments) for truth in found})
    line["directory"] = str(job.directory)
    try:
        seen = client.seen(job)
    except (FileNotFoundError, LookupError, TypeError) as error:
        return json.dumps({**line, "seen": repr(error)})
    line["seen"] = len(seen)
    line["ttft_ms"] = sorted(round(one.ttft_s * 1e3) for one in seen if one.ttft_s is not None)
    line["longest_gap_ms"] = round(max((gap for one in seen for gap in one.gaps_s), default=0.0) * 1e3)
    line["tokens"] = sorted({str(one.tokens) for one in seen})
    line["errors"] = sorted({str(one.error) for one in seen})
    return json.dumps(line)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
