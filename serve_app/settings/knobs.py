"""The knobs: values that an operator changes while an application runs. A change restarts nothing.

They are in the `user_config` of the `Ingress` deployment. The way of a change: Ray Serve calls
`Ingress.reconfigure`, `ingress/knob_applier.py` checks the knobs and writes the document `knobs`, and
`controller/document_exchange.py` reads it for the policy.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, time
from typing import Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator

from serve_app.settings.caller import Lane
from serve_app.settings.closed_model import ClosedModel, TimeZone
from serve_app.settings.model_names import AdapterSources, Aliases, LoraSettings, name_problems, version_base
from serve_app.settings.settings_error import SettingsError, from_pydantic, shown

Percentile = Literal[50, 90, 95, 99]
PERCENTILES: tuple[Percentile, ...] = (50, 90, 95, 99)
"""The percentiles that replicas report of their latencies."""
ITL_PERCENTILES = (50, 90, 95, 96, 97, 98, 99)
"""More percentiles of inter-token latencies. Some steps only decode and others also prefill. The share of
steps that prefill shows a replica's capacity."""

Seconds = Annotated[float, Field(ge=0, le=86_400)]
StartSeconds = Annotated[float, Field(gt=0, le=86_400)]
ClockTime = Annotated[str, Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]
Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


def _check_at_most(path: str, least: int, most: int) -> None:
    if least > most:
        raise ValueError(f"{path}min_replicas = {least} must be at most max_replicas = {most}")


class Window(ClosedModel):
    """The time from `start` to `end` on `days`, in local time of `timezone`.

    A window whose `end` is at or before its `start` runs past midnight. `days` are the days on which windows
    start.
    """

    days: Annotated[tuple[Day, ...], Field(min_length=1)] = DAYS
    start: ClockTime
    end: ClockTime
    timezone: TimeZone = "UTC"

    @field_validator("start", "end", mode="before")
    @classmethod
    def _quoted(cls, clock: object) -> object:
        if isinstance(clock, int):  # YAML 1.1 reads 18:00 as 18 * 60
            raise ValueError('must be a time in quotes, such as "18:00"; without quotes, YAML reads a number')
        return clock

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if self.start == self.end and len(set(self.days)) < len(DAYS):
            raise ValueError(
                f"start = end = {self.start!r} means the whole day: list all seven days, or set a window"
            )
        return self

    def covers(self, moment: float) -> bool:
        """Whether `moment` (Unix time, seconds) lies within a window."""
        local = datetime.fromtimestamp(moment, ZoneInfo(self.timezone))
        start, end = time.fromisoformat(self.start), time.fromisoformat(self.end)
        clock = local.time()
        today, yesterday = (DAYS[local.weekday() - ago] in self.days for ago in (0, 1))
        if start < end:
            return today and start <= clock < end
        return (today and clock >= start) or (yesterday and clock < end)


class Schedule(Window):
    """Keeps at least `min_replicas` ready in the window."""

    min_replicas: Annotated[int, Field(ge=1, le=10_000)]


class StartingValues(ClosedModel):
    """The speed and start of a replica that the policy assumes until it has measured them.

    The names are those of a fleet file (`replay.profile`); `tideserve capacity` measures the values.

    The step time is the prior of the policy's fit. It counts as known within a factor of two, and one second
    of measured steps outweighs it.
    """

    step_base_s: Annotated[float, Field(ge=1e-5, le=60)]
    step_per_sequence_s: Annotated[float, Field(ge=0, le=1)]
    step_per_kv_token_s: Annotated[float, Field(ge=0, le=0.001)]
    step_per_prefill_token_s: Annotated[float, Field(ge=0, le=1)]
    cold_start_s: tuple[StartSeconds, StartSeconds] | None = None
    """Least and most seconds of a replica's start. None: the general assumption."""
    kv_cache_tokens: Annotated[int, Field(ge=1024, le=1_000_000_000)] | None = None
    """Tokens in the KV cache of one replica. None if no limit is assumed."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.cold_start_s is not None and self.cold_start_s[0] > self.cold_start_s[1]:
            least, most = self.cold_start_s
            raise ValueError(f"cold_start_s = [{least:g}, {most:g}]: the first must be at most the second")
        return self

    @property
    def coefficients(self) -> tuple[float, float, float, float]:
        """Seconds per step, and per sequence, KV token and prefill token in it."""
        per_token_s = (self.step_per_kv_token_s, self.step_per_prefill_token_s)
        return (self.step_base_s, self.step_per_sequence_s, *per_token_s)

    @property
    def typical_start_s(self) -> float | None:
        """The mean of the two `cold_start_s`, because measured starts are a median."""
        return None if self.cold_start_s is None else sum(self.cold_start_s) / 2


class CanaryRules(ClosedModel):
    """When a version loses its share, in comparison with the old version over the same minutes.

    Each rule needs evidence of a worse version, and a difference of at least its value. null: no such rule.
    """

    errors: Annotated[float, Field(ge=0, le=1)] | None = 0.01
    """The rise of the share of requests that fail, or lose their replica."""
    length: Annotated[float, Field(ge=0, le=1)] | None = 0.1
    """The rise of the share of answers that end at their limit of tokens."""
    empty: Annotated[float, Field(ge=0, le=1)] | None = 0.01
    """The rise of the share of answers without a token of text or a tool call."""
    tool_calls: Annotated[float, Field(ge=0, le=1)] | None = 0.02
    """The rise of the share of answers with tool calls whose arguments are not JSON, among those with any."""
    ttft_p95: Annotated[float, Field(ge=1, le=100)] | None = 1.5
    """The ratio of the P95 of times to first token."""
    itl_p95: Annotated[float, Field(ge=1, le=100)] | None = 1.5
    """The ratio of the P95 of the streams' mean inter-token latencies."""
    window_s: Annotated[float, Field(ge=60, le=86_400)] = 3600.0
    """Seconds of one comparison. Then the next one begins with new counts."""
    streams: Literal["finish", "end"] = "finish"
    """Whether the streams of a version that loses its whole share finish, or end with an error at once."""


class Knobs(ClosedModel):
    """Autoscaling of one model's engine replicas, and the model's aliases. Times in seconds."""

    model_config = ConfigDict(use_attribute_docstrings=True)  # the page shows them

    mode: Literal["act", "advise"] = "act"
    """With `advise`, decisions are recorded but change nothing, except to keep the two bounds below."""
    min_replicas: Annotated[int, Field(ge=0, le=10_000)] = 1
    max_replicas: Annotated[int, Field(ge=1, le=10_000)] = 1

    ttft_target_s: Annotated[float, Field(gt=0, le=3600)] = 0.2
    ttft_percentile: Percentile = 95
    """The share of requests, in percent, that should see their first token within `ttft_target_s`."""
    itl_target_s: Annotated[float, Field(gt=0, le=60)] = 0.025
    """The same share of inter-token latencies should be at most this long."""

    queue_target_per_replica: Annotated[float, Field(gt=0, le=100_000)] = 8.0
    """Queued requests that one replica may have: queued for a cold start, or in its engine."""
    slo_attainment: Annotated[float, Field(ge=0.5, le=0.9999)] = 0.99
    """The share of minutes that should meet the targets. Minutes that miss the targets raise the headroom."""
    headroom: Annotated[float, Field(ge=0, le=10)] = 0.15
    """The least spare replicas, in units of sqrt(replicas the load needs): square-root staffing."""

    upscale_delay_s: Annotated[float, Field(ge=0, le=600)] = 5.0
    """How long a queue must last before replicas are added. There is no delay from zero replicas."""
    downscale_delay_s: Seconds | None = None
    """How long fewer replicas must have been enough before one of several is removed. None: the time of four
    starts, from 10 to 60 s."""
    downscale_to_zero_delay_s: Seconds = 300.0
    """How long a model must have been idle before its last replica is removed."""
    drain_move_after_s: Seconds | None = 5.0
    """How long a draining replica keeps its streams before they continue at other replicas with free
    capacity. None: its streams end there."""

    forecast: bool = True
    """Keep replicas for the demand that is possible within the time a replica takes to start."""
    forecast_quantile: Annotated[float, Field(ge=0, le=1)] = 0.9
    """The share of requests whose demand the forecast covers where a start takes a minute or more. A shorter
    start may cover less."""
    forecast_window_s: Annotated[float, Field(ge=60, le=604_800)] = 7200.0
    """Seconds of traffic, without idle time, after which past demand has lost its weight."""
    schedules: tuple[Schedule, ...] = ()
    """Weekly times, each with its own least number of replicas."""
    starting_values: StartingValues | None = None
    """The assumed speed of a replica until steps and a start have been measured. None: an A100's steps."""

    min_on_demand: Annotated[int, Field(ge=0, le=10_000)] = 0
    """The least replicas of variants that are not preemptible, while the model has any replica. The policy
    adds spare replicas for nodes that may be taken away, but only after it has seen nodes taken away."""

    canary: CanaryRules = CanaryRules()
    """When a new version loses its share of the conversations by itself, and what its streams do then."""

    share_weight: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """How much a request of this model counts when busy models share too few GPUs."""
    turn_s: Annotated[float, Field(gt=0, le=86_400)] | None = None
    """How long a replica serves before a model without any replica may take its place. None: the time of ten
    starts, at least 30 s. Never less than four starts."""

    standard_share: Annotated[float, Field(ge=0, le=1)] = 0.2
    """The share of tokens that the lane `standard` gets at least while requests of the lane `interactive`
    wait too."""
    background_wakes: bool = False
    """Whether requests of the lane `background` start a replica from zero. If not, they wait until another
    request or a schedule starts one."""
    background_keep_s: Seconds = 600.0
    """How long requests of the lane `background` keep the last replica after the last other request."""
    background_backlog_s: Annotated[float, Field(gt=0, le=604_800)] | None = None
    """Seconds in which the backlog of the lane `background` should be done: replicas are added for a longer
    backlog. None: a backlog adds no replicas."""
    background_hours: tuple[Window, ...] = ()
    """When a backlog may add replicas, and background requests may start one from zero. (): at any time."""
    background_wait_timeout_s: Annotated[float, Field(gt=0, le=604_800)] = 86_400.0
    """How long a request of the lane `background` may wait for the first byte of its answer, in the queue and
    in an engine. Then it gets 503."""

    background_deadlines: bool = False
    """Whether replicas are added, or one is started from zero, for a batch that would miss its completion
    window. If not, batches only use idle time, and `background_backlog_s`."""
    batch_concurrency: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Lines of batches that are in flight at once. None: twice the places in the batches of all engines."""

    adapters: AdapterSources = Field(default_factory=dict)
    """LoRA adapters: sources by the names that clients send in `model`. A source is a folder, a Hugging Face
    id, a URL that fsspec reads, or `embedded`. The files of a source must not change."""

    prefill_groups: bool = True
    """Pick replicas so that engines prefill several prompts in one step. False: pick the least loaded
    replica."""
    max_held_requests: Annotated[int, Field(ge=0, le=1_000_000)] = 1000
    """Requests that each ingress replica queues for a cold start. Others get 429."""
    cold_wait_timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    """How long a request may be queued for a cold start. Then it gets 503."""
    keep_alive_interval_s: Annotated[float, Field(gt=0, le=300)] = 5.0
    """Time between the SSE comments of a stream that waits for its first output."""
    aliases: Aliases = ()
    """Other names by which clients may ask for the model. `*` and `?` are wildcards."""

    @property
    def background_step_s(self) -> float:
        """The most seconds of an engine step that has `background` sequences beside those of other lanes.

        A fifth of the ITL target is a margin: the bound is kept on average, and steps differ.
        """
        return 0.8 * self.itl_target_s

    def lane_knob(self, lane: Lane) -> float | None:
        """Return the value of the knob that each call of `lane` takes to its engine; None if the lane has no
        such knob.

        It is `standard_share` for `standard`, and `background_step_s` for `background`.
        """
        return {"standard": self.standard_share, "background": self.background_step_s}.get(lane)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        _check_at_most("", self.min_replicas, self.max_replicas)
        for index, schedule in enumerate(self.schedules):
            _check_at_most(f"schedules[{index}].", schedule.min_replicas, self.max_replicas)
        return self


class IngressKnobs(ClosedModel):
    """Autoscaling of the ingress replicas, by the streams that they relay. Queued streams do not count."""

    model_config = ConfigDict(use_attribute_docstrings=True)  # the page shows them

    min_replicas: Annotated[int, Field(ge=1, le=1000)] = 2
    """With two, the loss of one leaves another. One if only `max_replicas: 1` is given."""
    max_replicas: Annotated[int, Field(ge=1, le=1000)] = 4
    target_ongoing_requests: Annotated[float, Field(gt=0, le=1_000_000)] = 200.0
    """Streams of one ingress replica. At 20 tokens/s each, 200 streams use about a fifth of a core."""
    downscale_delay_s: Seconds = 300.0

    @model_validator(mode="before")
    @classmethod
    def _default_within_bounds(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("max_replicas") == 1 and "min_replicas" not in given:
            return {**given, "min_replicas": 1}
        return given

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        _check_at_most("", self.min_replicas, self.max_replicas)
        return self


def overlay(defaults: Knobs, given: Mapping[str, Any]) -> Knobs:
    """Return `defaults` with the values of `given` in place. Raises pydantic's ValidationError."""
    return Knobs.model_validate({**defaults.model_dump(mode="json"), **given})


def scheduled_minimum(schedules: Sequence[Schedule], now: float, lead_s: float) -> int:
    """Return the largest `min_replicas` of the windows open now or within the next `lead_s` seconds.

    `lead_s` is the time that a replica takes to start, so that the replicas are ready when a window opens.
    The time until then is checked minute by minute, because windows open and close at whole minutes.
    """
    lead_s = min(max(lead_s, 0.0), 3600.0)
    moments = [*(now + 60.0 * minute for minute in range(int(lead_s // 60) + 1)), now + lead_s]
    return max((s.min_replicas for s in schedules if any(s.covers(m) for m in moments)), default=0)


_OF_MODELS: Mapping[str, Any] = {"aliases": (), "adapters": {}, "schedules": (), "min_replicas": 0}
"""Knobs that a version does not have from its model. Its share decides whether it has a replica."""


class LiveSettings(ClosedModel):
    """The `user_config` of the `Ingress` deployment: knobs by model name, and the ingress's own.

    Values that are not given have their defaults.
    """

    autoscaling: dict[str, dict[str, Any]] = Field(default_factory=dict)
    ingress: IngressKnobs = IngressKnobs()


def read_user_config(
    defaults: Mapping[str, Knobs],
    user_config: Mapping[str, Any] | None,
    lora: Mapping[str, LoraSettings | None] | None = None,
) -> tuple[dict[str, Knobs], IngressKnobs]:
    """Return every model's knobs by name, those given over its `defaults`, and the ingress's own.

    `lora` has the setting of each model by name; None if not known.

    Raises:
        SettingsError: with each invalid key under `user_config`, its value and the bound that it breaks.
    """
    try:
        live = LiveSettings.model_validate(user_config or {})
    except ValidationError as error:
        raise from_pydantic(error) from None
    problems: list[str] = []
    knobs = dict(defaults)
    names = dict.fromkeys((*defaults, *live.autoscaling))
    for model in sorted(names, key=lambda name: version_base(name, defaults) is not None):
        if model not in defaults:
            problems.append(
                f"autoscaling[{shown(model)}]: no such model; this application has "
                + ", ".join(repr(name) for name in defaults)
            )
            continue
        start, given = defaults[model], live.autoscaling.get(model, {})
        if (base := version_base(model, defaults)) is not None:
            start = knobs[base].model_copy(update=_OF_MODELS)  # read before its versions
        try:
            knobs[model] = overlay(start, given) if given else start
        except ValidationError as error:
            problems += [f"autoscaling[{model!r}].{line}" for line in from_pydantic(error).problems]
    aliases = {model: its.aliases for model, its in knobs.items()}
    problems += name_problems(aliases, {model: its.adapters for model, its in knobs.items()})
    for model, its in knobs.items():
        if its.adapters and lora is not None and lora.get(model) is None:
            problems.append(f"autoscaling[{model!r}].adapters: the model has no setting `lora`")
    if problems:
        raise SettingsError([line.replace(".(top level)", "") for line in problems])
    return knobs, live.ingress


class LiveKnobs:
    """Holds the knobs of one process; `apply` replaces all of them or none."""

    def __init__(
        self, defaults: Mapping[str, Knobs], lora: Mapping[str, LoraSettings | None] | None = None
    ) -> None:
        self._defaults = dict(defaults)
        self._lora = lora
        self._knobs = dict(defaults)
        self.ingress = IngressKnobs()

    def of(self, model: str) -> Knobs:
        """Return the present knobs of `model`. Callers should not keep them."""
        return self._knobs[model]

    @property
    def in_force(self) -> tuple[dict[str, Knobs], IngressKnobs]:
        """The present knobs of every model, and of the ingress. Callers should not keep them."""
        return self._knobs, self.ingress

    def read(self, user_config: Mapping[str, Any] | None) -> tuple[dict[str, Knobs], IngressKnobs]:
        """Return the knobs of `user_config` without applying them. Raises SettingsError if it is invalid."""
        return read_user_config(self._defaults, user_config, self._lora)

    def apply(self, user_config: Mapping[str, Any] | None) -> None:
        """Apply `user_config`. Raises SettingsError, and changes nothing, if it is invalid."""
        self._knobs, self.ingress = self.read(user_config)

    def adopt(self, knobs: Mapping[str, Knobs], ingress: IngressKnobs) -> None:
        """Apply knobs that another replica has checked."""
        self._knobs, self.ingress = dict(knobs), ingress

    def document(self) -> dict[str, Any]:
        """Return all knobs in force, as plain data."""
        return {
            "models": {model: knobs.model_dump(mode="json") for model, knobs in self._knobs.items()},
            "ingress": self.ingress.model_dump(mode="json"),
        }
