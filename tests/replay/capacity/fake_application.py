"""The HTTP API of an application with one engine replica whose steps follow a known step-time model."""

import asyncio
import random
import selectors
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from aiohttp import web
from aiohttp.typedefs import Handler

from serve_app.api.api_keys import OPEN_PATHS
from serve_app.policy.capacity_model import StepTime
from serve_app.settings.knobs import Knobs

T = TypeVar("T")
LAW = StepTime(0.004, 0.00005, 2e-8, 2e-5)
STEPS = 200.0
_ANSWER = b'data: {"choices":[{"text":"a"}]}\n\n' * 2 + b"data: [DONE]\n\n"


@dataclass
class FakeApplication:
    """Set its fields to have it misbehave."""

    model: str = "tide"
    api_key: str = "sk-tide"
    """Of which every request but probes and scrapes must have it."""
    replicas: int = 1
    target_replicas: int = 1
    knobs: dict[str, Any] = field(default_factory=lambda: Knobs().model_dump(mode="json"))
    busy: float = 0.0
    others: int = 0
    """Requests of others with every request of the measurement."""
    second_replica: bool = False
    silent: bool = False
    """Reports no steps."""
    limits: bool = True
    refusal: tuple[int, bytes] | None = None
    endless: bool = False
    """Streams go on until their clients leave."""
    cold: dict[str, Any] | None = None
    on_request: Callable[[int], None] | None = None
    """Called with the number of requests so far."""
    open_streams: int = 0
    left_open: int = 0
    """Streams that were still open when the measurement had ended."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    _arrivals: int = 0
    _sums: list[float] = field(default_factory=lambda: [0.0] * 5)
    _random: random.Random = field(default_factory=lambda: random.Random(7))

    def routes(self) -> list[web.RouteDef]:
        """What the API has of what a measurement asks for."""
        return [
            web.get("/v1/models", self._models),
            web.get("/ready", self._ready),
            web.get("/autoscaling/knobs", self._knobs),
            web.get("/autoscaling/decisions", self._decisions),
            web.get("/metrics", self._scrape),
            web.post("/tokenize", self._tokenize),
            web.post("/v1/completions", self._complete),
        ]

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self.model}]})

    async def _ready(self, request: web.Request) -> web.Response:
        ready = {
            "state": "up" if self.replicas else "loading",
            "replicas": self.replicas,
            "target_replicas": self.target_replicas,
            "phase": None if self.replicas else "imports",
            "reason": None,
        }
        status = 200 if self.replicas else 503
        return web.json_response({"ready": status == 200, "models": {self.model: ready}}, status=status)

    async def _knobs(self, request: web.Request) -> web.Response:
        return web.json_response({"models": {self.model: self.knobs}, "ingress": {}, "rejected": ""})

    async def _decisions(self, request: web.Request) -> web.Response:
        status = {"model": self.model, "cold_start_s": None, **(self.cold or {})}
        told = {"at": 1.0, "models": {"Engine-tide": status}}
        return web.json_response({"autoscaler": told, "decisions": []})

    async def _tokenize(self, request: web.Request) -> web.Response:
        return web.json_response({"count": 90, "max_model_len": 2048, "tokens": list(range(3, 93))})

    async def _scrape(self, request: web.Request) -> web.Response:
        return web.Response(text=self._metrics())

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        self._arrivals += 1 + self.others
        if self.on_request is not None:
            self.on_request(len(self.bodies))
        status, content = self.refusal or (200, _ANSWER)
        reply = web.StreamResponse(status=status)
        await reply.prepare(request)
        self.open_streams += 1
        try:
            # A step or two for each answer, so that the fake is not asked thousands of times.
            if self.refusal is None:
                await asyncio.sleep(3600.0 if self.endless else 0.05)
            await reply.write(content)
        finally:
            self.open_streams -= 1
        return reply

    def _metrics(self) -> str:
        """Between two scrapes the replica has taken `STEPS` steps under a load drawn anew."""
        if not self.silent and self._arrivals:
            batch = self._random.choice([1.0, 8.0, 64.0])
            kv_tokens = batch * self._random.choice([60.0, 300.0, 1900.0])
            prefill = self._random.choice([0.0, 40.0, 500.0])
            seconds = LAW.decode_s(batch, kv_tokens) + LAW.per_prefill_token_s * prefill
            for index, mean in enumerate((1.0, seconds, batch, kv_tokens, prefill)):
                self._sums[index] += STEPS * mean
        steps = dict(
            zip(
                (
                    "llm_steps_total",
                    "llm_step_seconds_total",
                    "llm_step_sequences_total",
                    "llm_step_kv_tokens_total",
                    "llm_step_prefill_tokens_total",
                ),
                self._sums,
                strict=True,
            )
        )
        text = exposition(self.model, "engine-1", **{k: v for k, v in steps.items() if v})
        if self.second_replica:
            text += exposition(self.model, "engine-2", **{k: v for k, v in steps.items() if v})
        if self.limits:
            text += exposition(
                self.model,
                "engine-1",
                llm_kv_cache_tokens=131_072,
                llm_max_num_seqs=16,
                llm_max_num_batched_tokens=2048,
                llm_running_requests=self.busy,
                llm_waiting_requests=0,
            )
        if self._arrivals:
            text += exposition(self.model, "ingress-1", llm_arrivals_total=self._arrivals)
        return text


def exposition(model: str, replica: str, **values: float) -> str:
    """Series as `/metrics` has them, each family with its type."""
    lines = []
    for name, value in values.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        lines.append(f"# TYPE {name} {kind}")
        lines.append(f'{name}{{model="{model}",replica="{replica}",Component="core_worker"}} {value}')
    return "\n".join(lines) + "\n"


class _OwnTime(selectors.DefaultSelector):
    """Where a loop would wait for its next timer, it sets the clock to it instead."""

    def __init__(self) -> None:
        super().__init__()
        self.passed_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if not timeout or timeout < 0:
            return super().select(timeout)
        # What is on its way between two sockets of this process arrives within this.
        events = super().select(min(timeout, 0.0005))
        if not events:
            self.passed_s += timeout
        return events


def _loop_with_its_own_time() -> asyncio.AbstractEventLoop:
    selector = _OwnTime()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.passed_s  # type: ignore[method-assign]
    return loop


def runs(app: FakeApplication, port: int) -> Callable[[Coroutine[Any, Any, T]], T]:
    """`asyncio.run` with `app` served at `port` by the same loop.

    The first run has a clock of its own, which is never late: the steps of the sweep. The second one, the
    open loop, keeps real time.
    """
    factories = iter((_loop_with_its_own_time, asyncio.new_event_loop))

    def run(main: Coroutine[Any, Any, T]) -> T:
        with asyncio.Runner(loop_factory=next(factories)) as runner:
            return runner.run(_beside(app, port, main))

    return run


async def _beside(app: FakeApplication, port: int, main: Coroutine[Any, Any, T]) -> T:
    """`main`; at its end the streams of `app` are given a moment to notice theirs."""

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path not in OPEN_PATHS and request.headers.get("Authorization") != f"Bearer {app.api_key}":
            return web.json_response({"error": {"message": "no such key"}}, status=401)
        return await handler(request)

    api = web.Application(middlewares=[guarded])
    api.add_routes(app.routes())
    # A client that leaves cancels its request, as the application's ingress does.
    runner = web.AppRunner(api, handler_cancellation=True, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        return await main
    finally:
        for _ in range(100):
            if not app.open_streams:
                break
            await asyncio.sleep(0.01)
        app.left_open = app.open_streams
        await runner.cleanup()
