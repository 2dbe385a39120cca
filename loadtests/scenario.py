"""A load test as its file describes it: arrivals, requests, SLOs and demands on scaling."""

import hashlib
import json
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator

from loadtests.kinds import DISTRIBUTION_TAGS, Kind, ScenarioPart
from serve_app.settings.document import parse_yaml, read_text
from serve_app.settings.settings_error import SettingsError, located

Seconds = Annotated[float, Field(gt=0, le=604_800)]
Rate = Annotated[float, Field(gt=0, le=100_000)]
Spacing = Literal["poisson", "even"]


class Steady(ScenarioPart):
    """A constant number of requests per second."""

    shape: Literal["steady"]
    for_s: Seconds
    rate: Rate
    spacing: Spacing = "poisson"


class Ramp(ScenarioPart):
    """A rate that changes in a straight line."""

    shape: Literal["ramp"]
    for_s: Seconds
    rate: Annotated[float, Field(ge=0, le=100_000)]
    to_rate: Annotated[float, Field(ge=0, le=100_000)]
    spacing: Spacing = "poisson"

    @model_validator(mode="after")
    def _some(self) -> Self:
        if self.rate + self.to_rate <= 0:
            raise ValueError("rate and to_rate are both 0; shape: idle says so")
        return self


class Wave(ScenarioPart):
    """A day and night: rate * (1 + swing * sin(2 pi t / period_s - pi / 2)), which begins at its minimum."""

    shape: Literal["wave"]
    for_s: Seconds
    rate: Rate
    """On average."""
    swing: Annotated[float, Field(ge=0, le=1)]
    """Share of `rate` that it rises and falls by."""
    period_s: Seconds
    spacing: Spacing = "poisson"


class Burst(ScenarioPart):
    """A number of requests within `over_s` of the start of the stretch, and none after."""

    shape: Literal["burst"]
    for_s: Seconds
    requests: Annotated[int, Field(ge=1, le=1_000_000)]
    over_s: Annotated[float, Field(ge=0, le=604_800)] = 0.0
    """0: all at once."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.over_s > self.for_s:
            raise ValueError(f"over_s = {self.over_s:g} must be at most for_s = {self.for_s:g}")
        return self


class Idle(ScenarioPart):
    """No requests."""

    shape: Literal["idle"]
    for_s: Seconds


class Recorded(ScenarioPart):
    """A trace in any format that `tideserve replay` reads, with the lengths of its prompts and answers."""

    shape: Literal["trace"]
    file: str | None = None
    """Relative to the scenario's file. None: `--trace` names it."""
    start_s: Annotated[float, Field(ge=0)] = 0.0
    """Where in the trace to begin."""
    for_s: Seconds
    """Seconds of the trace, before `time` scales them."""
    time: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Factor on the time between requests: 0.1 replays ten times faster."""
    rate: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Factor on the number of requests over the same time."""
    tokens: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Factor on prompt and answer lengths, for a model with a short context."""
    most_prompt_tokens: Annotated[int, Field(ge=1, le=10_000_000)] = 1_000_000
    most_output_tokens: Annotated[int, Field(ge=1, le=10_000_000)] = 1_000_000


Arrivals = Annotated[Steady | Ramp | Wave | Burst | Idle | Recorded, Field(discriminator="shape")]
ARRIVALS_TAGS = frozenset(("steady", "ramp", "wave", "burst", "idle", "trace"))


Bound = Annotated[float, Field(gt=0, le=1e9)]


class Bounds(ScenarioPart):
    """Percentiles that must stay below a bound; None is not judged."""

    p50: Bound | None = None
    p95: Bound | None = None
    p99: Bound | None = None

    @model_validator(mode="after")
    def _rising(self) -> Self:
        known = [(name, bound) for name, bound in self if bound is not None]
        for (lower, low), (upper, high) in pairwise(known):
            if low > high:
                raise ValueError(f"{lower} = {low:g} must be at most {upper} = {high:g}")
        return self


class Slos(ScenarioPart):
    """The defaults are for a GPU; a scenario overrides them. None is not judged."""

    ttft_ms: Bounds | None = Bounds(p50=100, p95=200, p99=500)
    """For all requests, cold ones included, counted from the intended time."""
    warm_ttft_ms: Bounds | None = None
    """For requests that were not queued for a cold start."""
    cold_wait_s: Bounds | None = None
    """How long the others were queued for a cold start."""
    itl_ms: Bounds | None = Bounds(p50=15, p95=25, p99=40)
    """Time between two pieces of an answer, over all answers."""
    hundred_tokens_s: Bounds | None = Bounds(p50=2, p95=3, p99=5)
    """From the intended time to the hundredth token, of answers that have as many."""
    error_rate: Annotated[float, Field(gt=0, le=1)] | None = 0.01
    """Rejected, failed, broken and abandoned requests, of all."""


Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,59}$")]


class Closed(ScenarioPart):
    """A closed loop: each stream sends its next request when its last is answered.

    It hides queueing, because a slow server is asked less often; so it is never the default.
    """

    streams: Annotated[int, Field(ge=1, le=10_000)]
    for_s: Annotated[float, Field(gt=0, le=604_800)]
    think_s: Annotated[float, Field(ge=0, le=3600)] = 0.0
    """Pause of a stream between an answer and its next request."""


class Scaling(ScenarioPart):
    """Demands on the replicas of a model. None is not judged."""

    starts_at: Annotated[int, Field(ge=0, le=10_000)] | None = None
    """Ready replicas before the first request. The run waits for them, and is invalid without them."""
    reaches: Annotated[int, Field(ge=0, le=10_000)] | None = None
    """Ready at once, at least, at some moment."""
    returns_to: Annotated[int, Field(ge=0, le=10_000)] | None = None
    """Ready, at most, within `within_s` after the last answer. The run goes on until then."""
    within_s: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    """Bound on the wait for `starts_at`, and on that for `returns_to`."""


class Client(ScenarioPart):
    """How requests are sent, and how late the client may be before the run is invalid."""

    lag_p99_ms: Annotated[float, Field(gt=0, le=60_000)] = 10.0
    """99 % of requests leave, and 99 % of the time arrivals are noticed, at most this much too late."""
    lag_max_ms: Annotated[float, Field(gt=0, le=600_000)] = 250.0
    """None later than this."""
    timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    """A request not answered in full by then is abandoned; counted from its intended time."""
    retries: Annotated[int, Field(ge=0, le=100)] = 0
    """Times that a request answered with 429 or 503 is sent again, after its `Retry-After`."""
    processes: Annotated[int, Field(ge=1, le=64)] = 1
    """Client processes that share the requests: one keeps time at some hundred streams."""


class Cost(ScenarioPart):
    """The cost of a replica."""

    gpus_per_replica: Annotated[int, Field(ge=1, le=1024)] = 1
    price_per_gpu_hour: Annotated[float, Field(ge=0, le=10_000)] = 0.0
    """US dollars; 0 where no price is known."""


class Scenario(ScenarioPart):
    """One load test. Times in seconds unless a name says otherwise."""

    name: Name
    about: str = ""
    """The purpose, for people."""
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    arrivals: tuple[Arrivals, ...] = ()
    """One after another; open loop."""
    repeat: Annotated[int, Field(ge=1, le=10_000)] = 1
    """How often `arrivals` repeat."""
    closed: Closed | None = None
    """In place of `arrivals`."""
    requests: Annotated[tuple[Kind, ...], Field(min_length=1)]
    slos: Slos = Slos()
    scaling: Scaling = Scaling()
    broken_streams: Annotated[int, Field(ge=0)] | None = 0
    """Streams that may be cut or end in an error. None: not judged."""
    client: Client = Client()
    cost: Cost = Cost()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if bool(self.arrivals) == (self.closed is not None):
            raise ValueError("one of arrivals (open loop) and closed (closed loop) must be given, not both")
        names = [kind.kind for kind in self.requests]
        if len(set(names)) != len(names):
            raise ValueError(f"requests[].kind must differ: {', '.join(names)}")
        if self.closed is not None and self.repeat != 1:
            raise ValueError(f"repeat = {self.repeat}: must be 1 with a closed loop")
        talking = next((kind.kind for kind in self.requests if kind.conversation is not None), None)
        if talking is not None and any(part.shape == "trace" for part in self.arrivals):
            raise ValueError(
                f"arrivals[].shape = trace: not with the conversations of kind {talking}, "
                "since a trace has the lengths of single requests"
            )
        return self

    def digest(self) -> str:
        """SHA-256 of the scenario, independent of the layout of its file."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


TAGS = ARRIVALS_TAGS | DISTRIBUTION_TAGS
"""Names of alternatives, which are no keys of the file; see `settings_error.located`."""


def read_scenario(path: Path) -> Scenario:
    """The scenario in `path`.

    Raises SettingsError for a file that cannot be read, and each key of it that is wrong or given twice, with
    its line.
    """
    document = parse_yaml(read_text(path), str(path))
    if not isinstance(document.value, dict):
        raise SettingsError([f"{path}: must be a mapping with the fields of a scenario"])
    try:
        return Scenario.model_validate(document.value)
    except ValidationError as error:
        problems = located(error, TAGS)
        raise SettingsError(
            [f"{path}:{document.line(place)}: {problem}" for place, problem in problems]
        ) from None
