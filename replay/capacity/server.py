"""The application under measurement: its HTTP API, and the series of one model at its `/metrics`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel, ConfigDict, ValidationError

from replay.fit import StepSample
from serve_app.settings.knobs import Knobs
from serve_app.settings.settings_error import from_pydantic

_TIMEOUT = aiohttp.ClientTimeout(total=15.0)
_STREAM = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=300.0)
_SHOWN = 300

_STEPS = "llm_steps_total"
_SUMS = (
    "llm_step_seconds_total",
    "llm_step_sequences_total",
    "llm_step_kv_tokens_total",
    "llm_step_prefill_tokens_total",
)
_ARRIVALS = "llm_arrivals_total"
_BUSY = ("llm_running_requests", "llm_waiting_requests")
_LIMITS = ("llm_kv_cache_tokens", "llm_max_num_seqs", "llm_max_num_batched_tokens")
_READ = frozenset((_STEPS, *_SUMS, _ARRIVALS, *_BUSY, *_LIMITS))
_LINES = tuple(f"{start}{name}" for name in sorted(_READ) for start in ("# TYPE ", ""))

# Scatter averages out, but the model's own error does not: it is about the scatter of ten steps. So a mean
# over 500 steps is hardly better than one over 50.
_STEPS_OF_HALF_WEIGHT = 10.0

D = TypeVar("D", bound=BaseModel)


class MeasurementError(Exception):
    """A measurement cannot be made: one sentence for the user, with what to do about it."""


class _Document(BaseModel):
    """Open to fields that a newer server adds."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class ListedModel(_Document):
    """One entry of `/v1/models`."""

    id: str
    root: str | None = None
    """The model of which this is an alias; vLLM has the folder of the weights here."""


class _Models(_Document):
    data: tuple[ListedModel, ...]


class Readiness(_Document):
    """One model of `/ready`."""

    state: str
    replicas: int
    target_replicas: int
    phase: str | None = None
    reason: str | None = None


class _Ready(_Document):
    models: dict[str, Readiness]


class Tokens(_Document):
    """The answer of `/tokenize`."""

    tokens: list[int]
    max_model_len: int


class _Knobs(_Document):
    models: dict[str, Knobs]


class ColdStart(_Document):
    """The cold start of a model's replicas as the policy has measured it, in seconds."""

    model: str
    cold_start_s: float | None = None
    """On the kind of node where the next replica starts."""
    phases_s: dict[str, float] = {}
    warm_node_start_s: float | None = None
    cold_node_start_s: float | None = None
    cold_node_phases_s: dict[str, float] = {}

    @property
    def longest_s(self) -> float:
        """The start on a cold node, or on a warm one if no other was measured."""
        return self.cold_node_start_s or self.cold_start_s or 0.0

    @property
    def longest_phases_s(self) -> dict[str, float]:
        """The phases of that start."""
        return self.cold_node_phases_s or self.phases_s


class _Status(_Document):
    models: dict[str, ColdStart] = {}


class _Decisions(_Document):
    autoscaler: _Status | None


@dataclass(frozen=True, slots=True)
class Scrape:
    """One model's series: by name, then by replica. A counter that has counted nothing is absent."""

    values: Mapping[str, Mapping[str, float]]

    def of(self, name: str) -> Mapping[str, float]:
        """Values by replica."""
        return self.values.get(name, {})

    @property
    def busy_requests(self) -> float:
        """Requests in engines, running or waiting."""
        return sum(sum(self.of(name).values()) for name in _BUSY)

    def limits(self) -> tuple[int, int, int] | None:
        """KV cache tokens, sequences in a batch and tokens of a step; None before the first report."""
        found = [max(self.of(name).values(), default=0.0) for name in _LIMITS]
        return None if not found[1] else (int(found[0]), int(found[1]), int(found[2]))


def read_scrape(text: str, model: str) -> Scrape:
    """The series of `model` in an exposition. Raises ValueError for lines that are no exposition."""
    values: dict[str, dict[str, float]] = {}
    # Parsing all series takes 10 to 40 ms, and every request that is due meanwhile would be late.
    own = [line for line in text.splitlines() if line.startswith(_LINES)]
    for family in text_string_to_metric_families("\n".join(own) + "\n"):
        for sample in family.samples:
            if sample.name in _READ and sample.labels.get("model") == model:
                replica = sample.labels.get("replica", "")
                values.setdefault(sample.name, {})[replica] = sample.value
    return Scrape(values)


def arrivals_between(before: Scrape, after: Scrape) -> float:
    """Requests that reached the ingress between two scrapes; a new ingress replica counts from zero."""
    known = before.of(_ARRIVALS)
    return sum(max(0.0, count - known.get(replica, 0.0)) for replica, count in after.of(_ARRIVALS).items())


def steps_between(before: Scrape, after: Scrape) -> dict[str, StepSample]:
    """The mean step of every replica that took steps between two scrapes, weighted by their number."""
    samples = {}
    for replica, steps in after.of(_STEPS).items():
        taken = steps - before.of(_STEPS).get(replica, 0.0)
        sums = [after.of(name).get(replica, 0.0) - before.of(name).get(replica, 0.0) for name in _SUMS]
        # A sum is below 0 after a restart. It is 0 s if the scrape came between the counters of a report.
        if taken < 1.0 or sums[0] <= 0.0 or min(sums) < 0.0:
            continue
        step_s, batch, kv_tokens, prefill_tokens = (total / taken for total in sums)
        weight = taken / (taken + _STEPS_OF_HALF_WEIGHT)
        samples[replica] = StepSample(step_s, batch, kv_tokens, prefill_tokens, weight)
    return samples


class Server:
    """A client of one application. `sent` counts the generations it has been asked for."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url.rstrip("/")
        self.sent = 0

    async def models(self) -> list[str]:
        """The names of the models served, without aliases."""
        listed = (await self._document("/v1/models", _Models)).data
        names = {model.id for model in listed}
        return [model.id for model in listed if model.root == model.id or model.root not in names]

    async def readiness(self, model: str) -> Readiness:
        """The number of replicas, and the phase of the next one."""
        found = (await self._document("/ready", _Ready, also=503)).models.get(model)
        if found is None:
            raise MeasurementError(f"{self._url} does not report the readiness of {model!r}")
        return found

    async def knobs(self, model: str) -> Knobs:
        """The knobs in force."""
        found = (await self._document("/autoscaling/knobs", _Knobs)).models.get(model)
        if found is None:
            raise MeasurementError(f"{self._url} does not report the knobs of {model!r}")
        return found

    async def cold_start(self, model: str) -> ColdStart | None:
        """The measured start of a replica; None before the first one."""
        status = (await self._document("/autoscaling/decisions?limit=1", _Decisions)).autoscaler
        found = [known for known in status.models.values() if known.model == model] if status else []
        return found[0] if found and found[0].cold_start_s else None

    async def tokenize(self, model: str, text: str) -> Tokens:
        """Token ids of `text`."""
        return await self._document("/tokenize", Tokens, {"model": model, "prompt": text})

    async def scrape(self, model: str) -> Scrape:
        """The series of `model` now."""
        _, text = await self._ask("/metrics", None)
        try:
            return read_scrape(text, model)
        except ValueError as error:
            raise MeasurementError(f"{self._url}/metrics is no exposition: {error}") from None

    async def generate(self, model: str, prompt: Sequence[int], output_tokens: int) -> None:
        """Stream one completion of exactly `output_tokens` to its end. Cancelled, it closes the stream.

        Raises MeasurementError for any answer that is not a whole stream.
        """
        body = {
            "model": model,
            "prompt": list(prompt),
            "max_tokens": output_tokens,
            "ignore_eos": True,
            "stream": True,
        }
        self.sent += 1
        last = b""
        try:
            call = self._session.post(f"{self._url}/v1/completions", json=body, timeout=_STREAM)
            async with call as reply:
                if reply.status != 200:
                    raise MeasurementError(
                        f"{self._url} answers {reply.status}: {_short(await reply.text())}"
                    )
                async for chunk in reply.content.iter_any():
                    last = (last + chunk)[-4096:]
        except (aiohttp.ClientError, TimeoutError) as error:
            raise MeasurementError(
                f"a stream of {self._url} broke: {error or type(error).__name__}"
            ) from None
        if not last.rstrip().endswith(b"data: [DONE]") or b"event: error" in last:
            raise MeasurementError(
                f"a stream of {self._url} failed: {_short(last.decode('utf-8', 'replace'))}"
            )

    async def _document(self, path: str, kind: type[D], body: Any = None, also: int = 200) -> D:
        status, text = await self._ask(path, body)
        if status not in (200, also):
            raise MeasurementError(f"{self._url}{path} answers {status}: {_short(text)}")
        try:
            return kind.model_validate_json(text)
        except ValidationError as error:
            problem = from_pydantic(error).problems[0]
            raise MeasurementError(
                f"{self._url}{path} answers, but not as Tideserve does: {problem}"
            ) from None

    async def _ask(self, path: str, body: Any) -> tuple[int, str]:
        method = "GET" if body is None else "POST"
        try:
            call = self._session.request(method, self._url + path, json=body, timeout=_TIMEOUT)
            async with call as reply:
                return reply.status, await reply.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise MeasurementError(
                f"nothing answers at {self._url}{path}: {error or type(error).__name__}"
            ) from None


def _short(text: str) -> str:
    return " ".join(text.split())[:_SHOWN]
