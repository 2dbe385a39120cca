"""One start, measured: from zero to the first token of every replica."""

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.common import process_tree
from benchmarks.common.server_process import HOST, ServerError, ServerProcess
from benchmarks.serving_overhead.servers import Engine, Start
from benchmarks.serving_overhead.usage import Usage, read_usage

_RAY_CPUS = 0.8
"""Cores left to Ray and the ingress when engine replicas share the rest."""
_SETTLED_CORES, _SETTLING_S = 0.5, 2.0
"""An idle Ray cluster takes 0.1 to 0.2 of a core. A zygote that imports takes a whole one."""
_LOOK_S = 0.05
_LOGGED_S = 30.0
"""A request is logged, and a start's phases are known, within this time."""
_PROMPT = list(range(301, 309))
"""Ids that every vocabulary has."""


@dataclass(frozen=True, slots=True)
class System:
    """One way to start engines."""

    title: str
    server: str = "tideserve"
    """Its name in `benchmarks.serving_overhead.servers`."""
    at_zero: bool = False
    """Whether the application runs, without replicas, when the clock starts."""
    zygote: bool = True

    @property
    def ours(self) -> bool:
        """Whether it is Tideserve."""
        return self.server == "tideserve"


SYSTEMS = {
    "tideserve": System("Tideserve, from zero", at_zero=True),
    "no-zygote": System("Tideserve, from zero, zygote off", at_zero=True, zygote=False),
    "fresh": System("Tideserve, `tideserve run`"),
    "vllm": System("vllm serve", "bare"),
    "vllm-uniproc": System("vllm serve, in-process executor", "bare-uniproc"),
}


@dataclass(frozen=True, slots=True)
class Case:
    """The start to measure."""

    system: str
    engine: Engine
    replicas: int
    burst: int
    """Requests sent at once to more than one replica of ours."""
    work: Path
    """A new folder with a short path: Ray puts unix sockets below it."""
    log: Path

    @property
    def request_log(self) -> Path:
        """The folder in which engine replicas of ours log their requests."""
        return self.work / "requests"

    def servers(self) -> list[ServerProcess]:
        """Start one server of ours for all replicas, or one of vLLM's for each."""
        system = SYSTEMS[self.system]
        config = self.configuration() if system.ours else None
        return [
            Start(system.server, self.engine, self.work / str(number), config).server(
                self.log.with_name(f"{self.log.name}-{number}.log")
            )
            for number in range(1 if system.ours else self.replicas)
        ]

    def configuration(self) -> dict[str, Any]:
        """The Serve configuration of a start of ours."""
        system, document = SYSTEMS[self.system], self.engine.tideserve_config()
        (application,) = document["applications"]
        if self.engine.device == "cpu":
            cores = (len(os.sched_getaffinity(0)) - _RAY_CPUS) / self.replicas
            tenths = math.floor(round(cores * 10, 6)) / 10
            application["args"]["models"][0]["cpus_per_replica"] = max(0.1, min(1.0, tenths))
        application["args"] |= {
            "zygote": system.zygote,
            "request_log": {"directory": str(self.request_log)},
        }
        application["deployments"][0]["user_config"]["autoscaling"] = {
            self.engine.served_model_name: {
                "min_replicas": 0 if system.at_zero else self.replicas,
                "max_replicas": self.replicas,
                "queue_target_per_replica": math.ceil(self.burst / self.replicas),
                "downscale_to_zero_delay_s": 3600,
                "downscale_delay_s": 3600,
            }
        }
        return document


@dataclass(frozen=True, slots=True)
class Measured:
    """One start. Times in seconds from zero: the request, or the start of the first process."""

    system: str
    replicas: int
    round: int
    first_token_s: float
    all_answered_s: float
    """When the last of the replicas had sent its first token."""
    up_s: float | None
    """From `tideserve run` until it took requests; None for vLLM."""
    cpu_s: Mapping[str, float]
    """By process, until all had answered."""
    pss_bytes: Mapping[str, int]
    other_cores: float
    """CPU taken meanwhile by anything else on the machine."""
    phases_s: Mapping[str, float]
    """The phases of a replica of ours, as the application reports them, and the waits around them."""


def measure(case: Case, number: int, timeout_s: float) -> Measured:
    """Start the servers, ask them, and stop them.

    Raises:
        ServerError: if one does not answer as it should.
    """
    system = SYSTEMS[case.system]
    with ExitStack() as stack:
        client = stack.enter_context(httpx.Client(timeout=timeout_s, trust_env=False))
        zero, busy_s, before, up_s = time.time(), process_tree.machine_busy_s(), Usage({}), None
        servers = case.servers()
        for server in servers:
            stack.callback(server.stop)
        if system.ours:
            # `/ready` answers 200 once the replicas asked for are up: at zero, none.
            up_s = servers[0].wait_ready("/ready" if system.at_zero else "/health", timeout_s)
        if system.at_zero:
            _settle(servers[0], system, timeout_s)
            before = read_usage(_processes(servers))
            zero, busy_s = time.time(), process_tree.machine_busy_s()
        answers = _ask_all(client, case, servers)
        now, busy_s = time.time(), process_tree.machine_busy_s() - busy_s
        usage = read_usage(_processes(servers), memory=True).since(before)
        first_s = min(answer.token for answer in answers) - zero
        if system.ours and case.replicas > 1:
            answers = _first_of_replicas(case)
        phases_s: dict[str, float] = {}
        if system.at_zero:
            phases_s, decided = await_phases(client, _url(servers[0]))
            phases_s = with_waits(phases_s, decided - zero, first_s) if phases_s else {}
        return Measured(
            case.system,
            case.replicas,
            number,
            first_token_s=first_s,
            all_answered_s=max(answer.token for answer in answers) - zero,
            up_s=up_s,
            cpu_s=usage.cpu_s,
            pss_bytes=usage.pss_bytes,
            other_cores=max(0.0, (busy_s - usage.total_s) / (now - zero)),
            phases_s=phases_s,
        )


def _settle(server: ServerProcess, system: System, timeout_s: float) -> None:
    """Wait until the application at zero takes next to no CPU: until its zygote has imported."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        before, began = read_usage(server.processes()), time.monotonic()
        time.sleep(_SETTLING_S)
        after = read_usage(server.processes())
        cores = (after.total_s - before.total_s) / (time.monotonic() - began)
        if cores < _SETTLED_CORES and ("zygote" in after.cpu_s) == system.zygote:
            return
    raise ServerError(f"{server.name} is not at rest at zero within {timeout_s:.0f} s")


@dataclass(frozen=True, slots=True)
class Answer:
    """A request: when it was sent, and when its first token came, in Unix seconds."""

    sent: float
    token: float


def ask(
    client: httpx.Client, url: str, model: str, check: Callable[[], None], prompt: Sequence[int] = _PROMPT
) -> Answer:
    """Stream two tokens. While nothing listens at `url`, call `check` and try again.

    Comments of a stream that waits for a replica are no tokens.

    Raises:
        ServerError: for an answer that is an error or ends before a token.
    """
    body = {"model": model, "prompt": list(prompt), "max_tokens": 2, "ignore_eos": True, "stream": True}
    while True:
        sent = time.time()
        try:
            with client.stream("POST", f"{url}/v1/completions", json=body) as reply:
                if reply.status_code != 200:
                    raise ServerError(f"{url} answers {reply.status_code}: {reply.read().decode()[:300]}")
                for line in reply.iter_lines():
                    if line.startswith("event: error"):
                        raise ServerError(f"{url} ended the stream with an error")
                    if line.startswith("data: {"):
                        return Answer(sent, time.time())
            raise ServerError(f"{url} ended the stream before its first token")
        except httpx.ConnectError:
            check()
            time.sleep(_LOOK_S / 2)


def _ask_all(client: httpx.Client, case: Case, servers: Sequence[ServerProcess]) -> list[Answer]:
    """Ask each server once, or several replicas of ours by bursts until all are up."""
    model = case.engine.served_model_name

    def once(server: ServerProcess) -> Answer:
        return ask(client, _url(server), model, server.check_alive)

    with ThreadPoolExecutor(max(case.burst, len(servers))) as pool:
        if not SYSTEMS[case.system].ours or case.replicas == 1:
            return list(pool.map(once, servers))
        answers: list[Answer] = []
        while True:
            up = client.get(f"{_url(servers[0])}/ready").json()["models"][model]["replicas"]
            answers += pool.map(once, [servers[0]] * case.burst)
            if up >= case.replicas:
                return answers


def _first_of_replicas(case: Case) -> list[Answer]:
    """The first answer of each replica, from the request logs."""
    end = time.monotonic() + _LOGGED_S
    while len(found := first_answers(case.request_log)) < case.replicas:
        if time.monotonic() > end:
            raise ServerError(f"{len(found)} of {case.replicas} replicas have answered a request")
        time.sleep(_LOOK_S)
    return list(found.values())


def first_answers(folder: Path) -> dict[str, Answer]:
    """The first answer of each replica with a request log in this folder."""
    found: dict[str, Answer] = {}
    for path in sorted(folder.glob("requests.*.jsonl")):
        name = path.name.split(".")[3]
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n") and (one := json.loads(line))["ttft_s"] is not None:
                answer = Answer(one["arrived_at"], one["arrived_at"] + one["ttft_s"])
                found[name] = min(answer, found.get(name, answer), key=lambda each: each.token)
    return found


def await_phases(client: httpx.Client, url: str) -> tuple[dict[str, float], float]:
    """The phases of the start of a replica, and the Unix time of the decision to start it.

    No phases are returned if the policy does not know them in time.
    """
    end = time.monotonic() + _LOGGED_S
    while time.monotonic() < end:
        document = client.get(f"{url}/autoscaling/decisions?limit=100").json()
        models = ((document.get("autoscaler") or {}).get("models") or {}).values()
        phases: dict[str, float] = next((one["phases_s"] for one in models if one.get("phases_s")), {})
        decided = [float(one["at"]) for one in document["decisions"] if one["new_target"] > 0]
        if phases and decided:
            return phases, min(decided)
        time.sleep(_LOOK_S)
    return {}, math.inf


def with_waits(phases: Mapping[str, float], decided_s: float, first_s: float) -> dict[str, float]:
    """The phases between the waits before and beside them; together the time to the first token."""
    rest = first_s - decided_s - sum(phases.values())
    return {"until the decision": decided_s, **phases, "Ray, routing and first token": rest}


def _url(server: ServerProcess) -> str:
    return f"http://{HOST}:{server.port}"


def _processes(servers: Sequence[ServerProcess]) -> Iterator[psutil.Process]:
    return (process for server in servers for process in server.processes())
