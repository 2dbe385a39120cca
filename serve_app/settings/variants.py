"""What may differ between the replicas of one model, and the model's variants.

A variant is an engine deployment of its own: the model's settings with some of them overridden. All variants
give answers of the same form, so a client cannot tell which of them has answered.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from serve_app.settings.closed_model import ClosedModel, CustomResources

MOST_VARIANTS = 8
SHARED_ARGS = (
    "tokenizer_mode", "skip_tokenizer_init", "hf_config_path", "hf_overrides", "generation_config",
    "override_generation_config", "max_logprobs", "logprobs_mode", "logits_processors", "pooler_config",
    "limit_mm_per_prompt", "mm_processor_kwargs", "media_io_kwargs", "enable_prompt_embeds", "response_role",
    "chat_template_content_format", "default_chat_template_kwargs", "enable_auto_tool_choice",
    "tool_parser_plugin", "reasoning_parser_plugin", "seed", "max_seq_len_to_capture", "speculative_config",
)  # fmt: skip
"""Arguments of vLLM that decide the form of answers, or which requests are accepted."""
_SHARED = (
    "tokenizer", "max_model_len", "task", "max_num_seqs", "chat_template", "scheduling_policy", "lora",
    "tool_call_parser", "reasoning_parser", "structured_output", "allowed_media_domains",
    "trust_remote_code", "max_ongoing_requests", "max_sequences_per_request", "drain_timeout_s",
    "engine_hang_timeout_s",
)  # fmt: skip
"""Settings of a model that no variant overrides."""
_OF_VERSIONS = ("tokenizer", "chat_template", "tool_call_parser", "reasoning_parser")
"""Settings of a model that only a version overrides."""
_NOT_OF_VERSIONS = ("usd_per_hour", "preemptible", "min_replicas", "max_replicas", "assumed_speed")
_MERGED = ("engine_args", "env")
"""Overrides of these mappings replace single keys."""
Quantization = Literal[
    "awq", "gptq", "bitsandbytes",
    "fp8", "fp8_per_tensor", "fp8_per_block", "fp8_per_channel", "mxfp8", "int8_per_channel_weight_only",
]  # fmt: skip
"""The first three need prepared weights. vLLM makes the others while it loads."""
LoadFormat = Literal[
    "auto", "safetensors", "pt", "npcache", "mistral", "dummy", "sharded_state", "tensorizer",
    "fastsafetensors", "instanttensor", "runai_streamer", "runai_streamer_sharded",
]  # fmt: skip


class ReplicaSettings(ClosedModel):
    """The hardware of a replica, and how vLLM uses it. Each of these settings may differ in a variant."""

    device: Literal["cpu", "gpu"] = "gpu"
    accelerator_type: str | None = "A100"
    """Ray's name of the GPU type for replicas; null for any. Ignored with `device: cpu`."""
    gpus_per_replica: Annotated[int, Field(ge=1, le=1024)] | None = None
    """GPUs of one replica; by default `ranks`, which it must equal."""
    cpus_per_replica: Annotated[float, Field(ge=0)] = 1.0
    resources: CustomResources = Field(default_factory=dict)
    """Ray's custom resources that one replica takes, however many GPUs it has."""
    placement_group_strategy: Literal["PACK", "STRICT_PACK", "SPREAD", "STRICT_SPREAD"] = "STRICT_PACK"
    """How Ray places the GPUs of one replica. Only with `STRICT_PACK` are they always on one node."""

    dtype: Literal["auto", "float16", "bfloat16", "float32", "half", "float"] = "auto"
    quantization: Quantization | None = None
    load_format: LoadFormat = "auto"
    tensor_parallel_size: Annotated[int, Field(ge=1, le=1024)] = 1
    pipeline_parallel_size: Annotated[int, Field(ge=1, le=1024)] = 1
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    kv_cache_memory_bytes: Annotated[int, Field(ge=1 << 20)] | None = None
    """Exact size of the KV cache; required on CPU, where 256 MiB is the default."""
    max_num_batched_tokens: Annotated[int, Field(ge=16)] | None = None
    enable_prefix_caching: bool = True
    enforce_eager: bool = False
    engine_args: dict[str, Any] = Field(default_factory=dict)
    """Other engine or front-end arguments, by vLLM's names; unknown names are refused."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the engine's processes."""


class VariantSettings(ReplicaSettings):
    """One variant of a model. It has the settings of its model, except for those given here.

    A variant with `share` is a version: other weights, which get a share of the conversations.
    """

    name: Annotated[str, Field(max_length=40, pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")]
    """The name of the variant in metrics, records and the name of its deployment."""
    model: Annotated[str, Field(min_length=1)] | None = None
    """Prepared weights of the same model, such as a quantised copy. The tokenizer stays the model's own."""
    revision: str | None = None
    """The revision of `model`."""
    share: Annotated[float, Field(ge=0, le=1)] | None = None
    """The share of the conversations that this version gets at first; null for a variant with the same
    weights. `tideserve canary` changes the share."""
    shadow: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The share of the old version's requests that this version gets as copies, whose answers are dropped."""
    tokenizer: str | None = None
    """Of a version; by default the one of its weights."""
    chat_template: str | None = None
    """Of a version; by default the model's."""
    tool_call_parser: str | None = None
    """Of a version; by default the model's."""
    reasoning_parser: str | None = None
    """Of a version; by default the model's."""
    usd_per_hour: Annotated[float, Field(ge=0, le=1e5)] = 0.0
    """The price of one replica, with all its GPUs, in USD per hour; required, except for a version."""
    preemptible: bool = False
    """Whether the cloud may end its nodes at any time, as it does with spot nodes."""
    min_replicas: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Replicas of this variant that always run."""
    max_replicas: Annotated[int, Field(ge=1, le=10_000)] = 10_000
    """Replicas of this variant that may run at once."""
    assumed_speed: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """The speed of a replica relative to the first variant, until its steps have been measured."""

    @model_validator(mode="before")
    @classmethod
    def _leaves_shared_settings(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        is_version = given.get("share") is not None
        for name in _SHARED:
            if name in given and not (is_version and name in _OF_VERSIONS):
                raise ValueError(
                    f"{name} = {given[name]!r}: is the same for all variants of a model; set it on the model"
                )
        for name in _NOT_OF_VERSIONS if is_version else ():
            if name in given:
                raise ValueError(f"{name} = {given[name]!r}: not of a version; set the knobs of MODEL@NAME")
        if not is_version and "usd_per_hour" not in given:
            raise ValueError("usd_per_hour: required, except for a version, which has `share`")
        if not is_version and given.get("shadow"):
            raise ValueError(f"shadow = {given['shadow']!r}: only a version, which has `share`, gets copies")
        return given

    @model_serializer(mode="wrap")
    def _only_given(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the settings that are the model's, because a value given here overrides the model's."""
        return {name: value for name, value in serialize(self).items() if name in self.model_fields_set}

    def overrides(self) -> dict[str, Any]:
        """Return the settings of the model that this variant replaces, as plain data."""
        own = {*ReplicaSettings.model_fields, "revision", *_OF_VERSIONS}
        own |= {"model"} if self.model is not None else set()
        return {name: value for name, value in self.model_dump(mode="json").items() if name in own}


def overridden(model: Mapping[str, Any], variant: VariantSettings) -> dict[str, Any]:
    """Return the settings of `model`, as plain data, for replicas of `variant` alone."""
    own = variant.overrides()
    own |= {name: {**model.get(name, {}), **own[name]} for name in _MERGED if name in own}
    if (
        own.get("gpus_per_replica") is None
        and {"tensor_parallel_size", "pipeline_parallel_size"} & own.keys()
    ):
        own["gpus_per_replica"] = None
    if variant.share is not None:
        if "model" in own:
            own = {"revision": None, "tokenizer": None, **own}
        own |= {"version_of": model["name"], "share": variant.share, "shadow": variant.shadow}
        return {**model, **own, "name": f"{model['name']}@{variant.name}", "variants": []}
    if "model" in own:
        own = {"revision": None, **own, "tokenizer": model.get("tokenizer") or model["model"]}
    return {**model, **own, "variants": [variant.model_dump(mode="json")]}
