"""The settings of one Tideserve application: every name, default and bound.

A setting has the same name in the `args:` of a Serve configuration, in this tree and, where vLLM has it,
among vLLM's engine arguments. Sizes are in bytes or tokens and times in seconds, as the names say.
"""

import os
import re
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    field_validator,
    model_validator,
)

from serve_app.settings.closed_model import ClosedModel, CustomResources
from serve_app.settings.keys_file import KeysFile
from serve_app.settings.model_names import LoraSettings, version_base
from serve_app.settings.oidc import OidcSettings
from serve_app.settings.settings_error import SettingsError
from serve_app.settings.storage import BatchSettings, LedgerSettings, TokenPrices
from serve_app.settings.telemetry import TelemetrySettings
from serve_app.settings.variants import MOST_VARIANTS, ReplicaSettings, VariantSettings, overridden

INGRESS = "Ingress"
"""The name of the ingress deployment."""
BATCH_RUNNER = "BatchRunner"
"""The name of the deployment that works on batches."""
INGRESS_SCOPE = "ingress"
"""The word that selects the ingress's knobs instead of a model's. No model has this name."""
ENGINE_PREFIX = "Engine-"
"""Prefix of the names of engine deployments."""
EMBEDDED = "embedded"
"""The value of `model` for the demonstration model that is part of the package."""
Backend = Literal["xgrammar", "guidance", "outlines", "lm-format-enforcer", "auto"]
_ONTO_GPUS = ("fastsafetensors", "instanttensor", "runai_streamer", "runai_streamer_sharded")
"""These formats shorten the way from the disk to a GPU."""
_COMPACT = ("xgrammar", "guidance")
_COMPILE_S = 10.0
"""A string of `maxLength` 1,000 takes 5.4 s with a vocabulary of 128,000."""
_COMPILE_ONE_THREAD_S = 1.0
_ONE_THREAD_CPUS = 2
"""vLLM compiles in half as many threads as there are CPUs. On one, each compile holds up all others."""

_MODEL_NAME = r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*"
_HOST_NAME = r"^(\*|(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*|\[[0-9A-Fa-f:.]+\])$"
_ORIGIN = (
    r"^(\*|[A-Za-z][A-Za-z0-9+.-]*://([A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?)$"
)


def _check_absolute(path: str) -> str:
    if not path.startswith("/"):
        raise ValueError("must be an absolute path, the same on every node")
    return path


def _check_host_name(name: str) -> str:
    if not re.fullmatch(_HOST_NAME, name):
        raise ValueError(
            "must be a host name, an IP address (IPv6 in brackets), *.example.com for every name below, or * "
            "for any; without a port"
        )
    return name.lower()


def _check_origin(origin: str) -> str:
    if not re.fullmatch(_ORIGIN, origin):
        raise ValueError(
            "must be an origin such as https://chat.example.com:8443, without a path, or * for any"
        )
    if origin.endswith({"http": ":80", "https": ":443"}.get(origin.partition("://")[0].lower(), "/")):
        raise ValueError("must be without its scheme's own port, which browsers leave out")
    return origin.lower()


HostName = Annotated[str, AfterValidator(_check_host_name), Field(json_schema_extra={"pattern": _HOST_NAME})]
Origin = Annotated[str, AfterValidator(_check_origin), Field(json_schema_extra={"pattern": _ORIGIN})]
MediaHost = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", max_length=253)]
"""In lower case, without a scheme, a port or a wildcard."""
AbsolutePath = Annotated[str, AfterValidator(_check_absolute), Field(json_schema_extra={"pattern": "^/"})]


class StructuredOutputSettings(ClosedModel):
    """Bounds on one grammar, and the backend that compiles it.

    A compilation in the engine core cannot be stopped. So each grammar is first compiled, with these bounds,
    in a compile sandbox.
    """

    backend: Backend = "xgrammar"
    """The backend that compiles and applies grammars. With `auto`, vLLM chooses one for the first request,
    and the engine core keeps it."""
    disable_any_whitespace: bool | None = None
    """Whether JSON may have no whitespace between its tokens; by default true with xgrammar and guidance, the
    backends that can forbid it. Where it is allowed, a small model may write blanks until its last token."""
    max_bytes: Annotated[int, Field(ge=256, le=1 << 20)] = 64 << 10
    """Size of one grammar, as JSON or text."""
    max_choices: Annotated[int, Field(ge=1, le=100_000)] = 2_000
    """Choices, or all enum values of one schema."""
    max_properties: Annotated[int, Field(ge=1, le=100_000)] = 1_000
    """All properties of one schema."""
    max_compile_s: Annotated[float, Field(gt=0, le=60)] | None = None
    """CPU seconds that one grammar may take to compile; by default 10, or 1 on one or two CPUs, where the
    engine core compiles all grammars in one thread. A larger vocabulary takes longer."""
    max_compile_bytes: Annotated[int, Field(ge=64 << 20)] = 1 << 30
    """Memory that one grammar may take while it is compiled."""

    @model_validator(mode="after")
    def _can_forbid_whitespace(self) -> Self:
        if self.disable_any_whitespace and self.backend not in _COMPACT:
            raise ValueError(
                f"disable_any_whitespace = true: backend = {self.backend!r} cannot forbid whitespace; "
                "'xgrammar' and 'guidance' can"
            )
        return self

    @property
    def compile_s(self) -> float:
        """CPU seconds that one grammar may take to compile, by default those for this machine."""
        usual_s = _COMPILE_S if (os.cpu_count() or 1) > _ONE_THREAD_CPUS else _COMPILE_ONE_THREAD_S
        return usual_s if self.max_compile_s is None else self.max_compile_s

    @property
    def compact(self) -> bool:
        """Whether JSON has no whitespace between its tokens."""
        given = self.disable_any_whitespace
        return self.backend in _COMPACT if given is None else given


class ModelSettings(ReplicaSettings):
    """One model: its weights, how vLLM runs them, and on which hardware."""

    name: Annotated[
        str, Field(min_length=1, max_length=200, json_schema_extra={"pattern": f"^{_MODEL_NAME}$"})
    ]
    """The name that clients send in `model`."""
    model: Annotated[str, Field(min_length=1)] = EMBEDDED
    """A Hugging Face id, a local folder, or `embedded`."""
    revision: str | None = None
    tokenizer: str | None = None

    variants: Annotated[tuple[VariantSettings, ...], Field(max_length=MOST_VARIANTS)] = ()
    """Kinds of replicas, such as spot nodes, or GPUs of another type. The policy chooses how many replicas of
    each run. Without variants, all replicas have the settings of the model."""
    version_of: str | None = None
    """The model of which this is a version; null for a model. A variant with `share` sets these three."""
    share: Annotated[float, Field(ge=0, le=1)] = 0.0
    shadow: Annotated[float, Field(ge=0, le=1)] = 0.0
    continue_on_other_weights: bool = False
    """Whether a stream may continue on a variant with other weights, such as a quantised copy. Its text may
    then change its style within an answer."""

    max_model_len: Annotated[int, Field(ge=16)] | None = None
    max_num_seqs: Annotated[int, Field(ge=1)] = 256
    scheduling_policy: Literal["fcfs", "priority"] = "priority"
    """`priority` is by lane and fair share. With `fcfs`, an engine ignores lanes and weights."""
    trust_remote_code: bool = False

    task: Literal["generate", "embed", "classify", "transcribe"] = "generate"
    """Whether the model generates text, embeds, classifies or only transcribes speech, as Whisper does. A
    cross-encoder, which scores pairs of texts, classifies."""
    tool_call_parser: str | None = None
    """vLLM's parser of this model's tool calls; a name turns on `tool_choice: auto`."""
    reasoning_parser: str | None = None
    structured_output: StructuredOutputSettings = StructuredOutputSettings()
    chat_template: str | None = None
    """Path of a Jinja chat template to use in place of the tokenizer's own."""
    allowed_media_domains: tuple[MediaHost, ...] = ()
    """Hosts from which images, audio and video of messages are fetched by URL. None by default. An address
    that is not public is always refused."""
    lora: LoraSettings | None = None
    """Bounds on LoRA adapters; null: without LoRA. The knob `adapters` lists the adapters."""
    vllm_metrics: bool = False
    """Whether `/metrics` has vLLM's own series too (`vllm:…`)."""

    max_ongoing_requests: Annotated[int, Field(ge=1)] = 1000
    """Requests of one replica at once, running or queued in the engine."""
    max_sequences_per_request: Annotated[int, Field(ge=1, le=10_000)] = 64
    """The largest product of a request's `n` and its number of prompts."""
    drain_timeout_s: Annotated[float, Field(ge=0)] = 600.0
    """How long a stopping replica drains. It is the longest generation that you allow."""
    engine_hang_timeout_s: Annotated[float, Field(ge=5, le=3600)] = 30.0
    """A replica is replaced when its engine has sequences and takes no step for this long, and for three
    times its longest step. After four seconds, new requests go to other replicas."""

    @field_validator("name")
    @classmethod
    def _printable(cls, name: str) -> str:
        if not re.fullmatch(_MODEL_NAME, name):
            raise ValueError("must consist of letters, digits and ._:/@+-, and begin with a letter or digit")
        if name == INGRESS_SCOPE:
            raise ValueError("is reserved: `tideserve knobs set ingress` changes the knobs of the ingress")
        return name

    @field_validator("model")
    @classmethod
    def _found_from_everywhere(cls, model: str) -> str:
        if model.startswith((".", "~")):
            raise ValueError(f"{model!r} must be an absolute path, which is the same on each node")
        return model

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name in ("tensor_parallel_size", "pipeline_parallel_size"):
            if self.device == "cpu" and (size := getattr(self, name)) > 1:
                raise ValueError(f"{name} = {size} must be 1 with device = 'cpu'")
        if self.device == "cpu" and self.load_format in _ONTO_GPUS:
            raise ValueError(f"load_format = {self.load_format!r} loads onto GPUs, and device = 'cpu'")
        if self.gpus_per_replica is not None:
            self._check_gpus()
        self._check_variants()
        if self.version_of is None and (self.share or self.shadow):
            raise ValueError(f"share = {self.share:g}, shadow = {self.shadow:g}: set them on a variant")
        return self

    def _check_gpus(self) -> None:
        gpus = f"gpus_per_replica = {self.gpus_per_replica}"
        if self.device == "cpu":
            raise ValueError(f"{gpus} has no meaning with device = 'cpu'")
        if self.gpus_per_replica != self.ranks:
            raise ValueError(
                f"{gpus} must equal tensor_parallel_size x pipeline_parallel_size = {self.ranks}: vLLM uses "
                "one GPU per rank"
            )

    def _check_variants(self) -> None:
        """Raise ValueError if two variants have one name, or a variant's settings contradict each other."""
        names = [variant.name for variant in self.variants]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise ValueError(f"variants[{index}].name = {name!r}: two variants have this name")
        if len(versions := [variant.name for variant in self.variants if variant.share is not None]) > 1:
            raise ValueError(f"variants: {' and '.join(versions)} have `share`; only one version may have it")
        own = self.model_dump(mode="json") if names else {}
        for index, variant in enumerate(self.variants):
            found = overridden(own, variant)
            if found == own:  # these are the settings of the variant's replicas
                continue
            try:
                self.model_validate(found)
            except ValidationError as error:
                why = error.errors()[0]["msg"].removeprefix("Value error, ")
                raise ValueError(f"variants[{index}]: {why}") from None

    def _only(self, variant: VariantSettings) -> Self:
        return self.model_validate(overridden(self.model_dump(mode="json"), variant))

    def engines(self) -> tuple[Self, ...]:
        """Return the settings of each engine deployment: one per variant, or one without variants.

        Settings with a single variant are those of that variant's replicas.
        """
        return tuple(self._only(variant) for variant in self.variants) or (self,)

    @property
    def variant(self) -> str:
        """The variant of these replicas; "" for a model without variants, or with several."""
        return self.variants[0].name if len(self.variants) == 1 else ""

    @property
    def engine_name(self) -> str:
        """The Ray Serve deployment of these replicas: `deployment_name`, and the variant if there is one."""
        return f"{self.deployment_name}@{self.variant}" if self.variant else self.deployment_name

    @property
    def ranks(self) -> int:
        """vLLM's workers of one replica: one per GPU, and one on the CPU."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    def hour_price(self, ledger: LedgerSettings) -> float:
        """Return the price of one replica for an hour; of the dearest variant, if there are several."""
        if self.variants:
            return max(variant.usd_per_hour for variant in self.variants)
        return self.ranks * ledger.gpu_hour_price(self.device, self.accelerator_type)

    def token_prices(self, ledger: LedgerSettings) -> TokenPrices | None:
        """Return the prices of tokens, of a version by default its model's; None if GPU time is paid."""
        prices = ledger.usd_per_million_tokens
        return prices.get(self.name) or prices.get(self.version_of or "")

    @property
    def spans_nodes(self) -> bool:
        return self.ranks > 1 and self.placement_group_strategy != "STRICT_PACK"

    @property
    def deployment_name(self) -> str:
        """The name of this model's engines: without variants, that of their Ray Serve deployment."""
        return ENGINE_PREFIX + re.sub(r"[^A-Za-z0-9_-]+", "-", self.name)


class HttpSettings(ClosedModel):
    """Which clients may send requests, and how large the requests may be."""

    max_body_bytes: Annotated[int, Field(ge=1024, le=1 << 30)] = 8 << 20
    body_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 20.0
    """How long a body may take to arrive, in addition to one second for each 16 KiB."""
    max_body_memory_bytes: Annotated[int, Field(ge=1 << 20, le=1 << 40)] = 512 << 20
    """Bytes of bodies that one ingress replica may have in memory at once: of those being read, of requests
    that wait for the first byte of their answer, and of what is kept to continue streams. Shared among models
    and API keys; other requests get 429. Answers that clients have not read may take as much again."""
    api_keys_file: AbsolutePath | None = None
    """A file with one API key per line. Every request must have one of them; by default none is needed."""
    oidc: OidcSettings | None = None
    """An issuer whose tokens are accepted beside the keys of `api_keys_file`, which must be set."""
    conversation_header: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")] | None = None
    """The header whose value names a conversation, such as `X-Session-Id`. All its requests get the same
    version of a model. By default, all requests with the same API key do."""
    share_prefix_cache: bool = False
    """Whether clients with different API keys share prefix caches. If they do, `cached_tokens` and the time
    to first token show a client whether another client has sent a prompt with the same beginning."""
    allowed_hosts: Annotated[tuple[HostName, ...], Field(min_length=1)] | None = None
    """Allowed values of the `Host` header. By default, a server on a loopback address accepts localhost,
    127.0.0.1 and [::1]. Other servers accept any host."""
    cors_origins: tuple[Origin, ...] = ()
    """Origins of the web pages that may use the API."""

    @model_validator(mode="after")
    def _keys_beside_tokens(self) -> Self:
        if self.oidc is not None and self.api_keys_file is None:
            raise ValueError("oidc: needs api_keys_file, which has the teams, and keys without the issuer")
        return self

    @model_validator(mode="after")
    def _largest_body_fits(self) -> Self:
        if self.max_body_memory_bytes < 2 * self.max_body_bytes:
            raise ValueError(
                f"max_body_memory_bytes = {self.max_body_memory_bytes} must be at least twice "
                f"max_body_bytes = {self.max_body_bytes}: the requests of one model may take half of it"
            )
        return self


class IngressSettings(ClosedModel):
    """The HTTP ingress deployment."""

    cpus_per_replica: Annotated[float, Field(ge=0)] = 0.5
    resources: CustomResources = Field(default_factory=dict)
    """Ray's custom resources that one replica takes."""
    max_ongoing_requests: Annotated[int, Field(ge=1)] = 10_000


class RequestLogSettings(ClosedModel):
    """A log with one line per request that was in an engine, without its text. `tideserve replay` reads
    it."""

    enabled: bool = True
    directory: AbsolutePath | None = None
    """Where each node keeps its files; by default beside Ray Serve's own logs."""
    max_bytes: Annotated[int, Field(ge=1 << 20)] = 256 << 20
    """The size of the files of one model on one node. The oldest are deleted for new ones."""


class AppSettings(ClosedModel):
    """The `args:` of a Tideserve application."""

    models: Annotated[tuple[ModelSettings, ...], Field(min_length=1)]
    http: HttpSettings = HttpSettings()
    ingress: IngressSettings = IngressSettings()
    request_log: RequestLogSettings = RequestLogSettings()
    ledger: LedgerSettings = LedgerSettings()
    batch: BatchSettings = BatchSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    ui: bool = True
    """Whether the server has the page, its stream of events, and changes of knobs over HTTP."""
    zygote: bool = True
    """Whether each node keeps a process that has imported vLLM. Engine replicas are forks of it. Up to four
    forks wait to become the next replicas."""
    model_preemption: bool = True
    """Whether a model whose requests wait for room may take a replica's place from another model."""

    @model_validator(mode="wrap")
    @classmethod
    def _version_is_a_model(cls, given: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Make a model of each version: it has a queue, a decision and metrics of its own."""
        settings = handler(given)
        plain, versions = settings.model_dump(mode="json"), []
        for model, own in zip(settings.models, plain["models"], strict=True):
            versions += [overridden(own, each) for each in model.variants if each.share is not None]
            own["variants"] = [each for each in own["variants"] if each.get("share") is None]
        return handler({**plain, "models": plain["models"] + versions}) if versions else settings

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        for what in ("name", "deployment_name"):
            values = [getattr(model, what) for model in self.models]
            for index, value in enumerate(values):
                if value in values[:index]:
                    raise ValueError(f"models: two models have the {what} {value!r}; each needs its own")
        names = {model.name for model in self.models}
        for name in self.ledger.usd_per_million_tokens:
            if name not in names:
                raise ValueError(f"ledger.usd_per_million_tokens.{name}: must be the name of a model")
        for model in self.models:
            if model.version_of != (base := version_base(model.name, names)):
                why = f"version_of = {model.version_of!r}" if base is None else f"is a version of {base!r}"
                raise ValueError(f"models: the name {model.name!r} {why}; MODEL@VERSION names a version")
        return self

    def check_keys(self, keys: KeysFile) -> None:
        """Raise SettingsError if a file of keys has a budget that these settings cannot keep."""
        ledger = self.ledger
        is_priced = any(model.token_prices(ledger) or model.hour_price(ledger) for model in self.models)
        problems = (
            (ledger.enabled, "ledger.enabled = false: must be true"),
            (ledger.currency == "USD", f"ledger.currency = {ledger.currency!r}: must be 'USD'"),
            (
                is_priced,
                "ledger.gpu_hour_prices, ledger.usd_per_million_tokens: no model has a price",
            ),
        )
        for name in keys.budgets:
            if found := [f"{problem}, because {name} has a budget" for fits, problem in problems if not fits]:
                raise SettingsError(found)
