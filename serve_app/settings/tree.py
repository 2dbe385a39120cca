"""The settings of one Tideserve application: every name, default and bound.

The same names stand in the `args:` of a Serve configuration, in this tree and, where vLLM has the
setting, in its engine arguments. Sizes are in bytes or tokens and times in seconds, as named.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from serve_app.settings.closed_model import ClosedModel
from serve_app.settings.custom_resources import CustomResources
from serve_app.settings.structured_output import StructuredOutputSettings

EMBEDDED = "embedded"
"""The `model` value that stands for the demonstration model shipped in the package."""


class ModelSettings(ClosedModel):
    """One model: which weights, how vLLM runs them, on what hardware, at what scale."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    """What clients write in `model`."""
    model: Annotated[str, Field(min_length=1)] = EMBEDDED
    """A Hugging Face id, a local folder, or `embedded`."""
    revision: str | None = None
    tokenizer: str | None = None

    device: Literal["cpu", "gpu"] = "gpu"
    accelerator_type: str | None = "A100"
    """Ray's name of the GPU type to place replicas on; null for any. Ignored on `device: cpu`."""
    gpus_per_replica: Annotated[int, Field(ge=1, le=1024)] | None = None
    """GPUs of one replica; by default `tensor_parallel_size`, which it must equal."""
    cpus_per_replica: Annotated[float, Field(ge=0)] = 1.0
    resources: CustomResources = Field(default_factory=dict)
    """Ray's custom resources that one replica takes, whatever number of GPUs it has."""
    placement_group_strategy: Literal["PACK", "STRICT_PACK", "SPREAD", "STRICT_SPREAD"] = "STRICT_PACK"

    dtype: Literal["auto", "float16", "bfloat16", "float32", "half", "float"] = "auto"
    quantization: Literal["awq", "gptq", "fp8", "bitsandbytes"] | None = None
    tensor_parallel_size: Annotated[int, Field(ge=1, le=1024)] = 1
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    kv_cache_memory_bytes: Annotated[int, Field(ge=1 << 20)] | None = None
    """Exact size of the KV cache; required on CPU, where 256 MiB is the default."""
    max_model_len: Annotated[int, Field(ge=16)] | None = None
    max_num_batched_tokens: Annotated[int, Field(ge=16)] | None = None
    max_num_seqs: Annotated[int, Field(ge=1)] = 256
    enable_prefix_caching: bool = True
    enforce_eager: bool = False
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    trust_remote_code: bool = False

    task: Literal["generate", "embed"] = "generate"
    tool_call_parser: str | None = None
    """vLLM's parser of this model's tool calls; naming one turns on `tool_choice: auto`."""
    reasoning_parser: str | None = None
    structured_output: StructuredOutputSettings = StructuredOutputSettings()
    chat_template: str | None = None
    """Path of a Jinja chat template, where the tokenizer's own is not wanted."""
    engine_args: dict[str, Any] = Field(default_factory=dict)
    """Any other vLLM engine or front-end argument, by vLLM's name; unknown names are refused."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment of the engine's processes."""

    max_ongoing_requests: Annotated[int, Field(ge=1)] = 1000
    """Requests one replica holds at once, running or queued in the engine."""
    max_queued_requests: Annotated[int, Field(ge=1)] = 1000
    """Requests that wait in Ray Serve's queue with `data_plane: handle`; beyond them, 429."""
    max_sequences_per_request: Annotated[int, Field(ge=1, le=10_000)] = 64
    """Bound on a request's `n` times its number of prompts."""
    drain_timeout_s: Annotated[float, Field(ge=0)] = 600.0
    """How long a stopping replica lets its streams finish: the longest generation allowed."""
    engine_hang_timeout_s: Annotated[float, Field(ge=5, le=3600)] = 30.0
    """A replica whose engine has sequences and takes no step for this long is replaced, unless three times
    its longest step is longer. New requests go elsewhere after four seconds already."""

    @model_validator(mode="before")
    @classmethod
    def _moved(cls, data: Any) -> Any:
        if isinstance(data, dict) and "scaling" in data:
            raise ValueError(
                "scaling: not a setting of `args`, where a change restarts replicas; replica counts are "
                "knobs, under deployments: name: Ingress, user_config: autoscaling: <model name>"
            )
        return data

    @field_validator("name")
    @classmethod
    def _printable(cls, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*", name):
            raise ValueError("letters, digits and ._:/@+- only, starting with a letter or digit")
        return name

    @model_validator(mode="after")
    def _consistent(self) -> ModelSettings:
        if self.device == "cpu" and self.tensor_parallel_size > 1:
            raise ValueError(
                f"tensor_parallel_size = {self.tensor_parallel_size} must be 1 on device = 'cpu'"
            )
        if self.gpus_per_replica is not None and self.device == "cpu":
            raise ValueError(f"gpus_per_replica = {self.gpus_per_replica} has no meaning on device = 'cpu'")
        if self.gpus_per_replica is not None and self.gpus_per_replica != self.tensor_parallel_size:
            raise ValueError(
                f"gpus_per_replica = {self.gpus_per_replica} must equal "
                f"tensor_parallel_size = {self.tensor_parallel_size}: vLLM uses one GPU a rank"
            )
        return self

    @property
    def deployment_name(self) -> str:
        """The Ray Serve deployment of this model's engines."""
        return "Engine-" + re.sub(r"[^A-Za-z0-9_-]+", "-", self.name)


class HttpSettings(ClosedModel):
    """Which clients are let in, and what they may send."""

    max_body_bytes: Annotated[int, Field(ge=1024, le=1 << 30)] = 8 << 20
    body_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 20.0
    """How long a body may take to arrive, beside a second for each 16 KiB of it."""
    max_body_memory_bytes: Annotated[int, Field(ge=1 << 20, le=1 << 40)] = 512 << 20
    """Bodies that one ingress replica has in memory at once: being read, and of requests that wait for the
    first byte of their answer, held ones above all. Shared among models and API keys; beyond it, 429."""
    api_keys_file: str | None = None
    """Keys of clients, one a line, of which each request must have one; by default none is needed."""

    @field_validator("api_keys_file")
    @classmethod
    def _absolute(cls, path: str | None) -> str | None:
        if path is not None and not path.startswith("/"):
            raise ValueError("must be an absolute path, the same wherever an ingress replica runs")
        return path

    @model_validator(mode="after")
    def _largest_body_fits(self) -> HttpSettings:
        if self.max_body_memory_bytes < 2 * self.max_body_bytes:
            raise ValueError(
                f"max_body_memory_bytes = {self.max_body_memory_bytes} must be at least twice "
                f"max_body_bytes = {self.max_body_bytes}: one model's requests may have half of it"
            )
        return self


class IngressSettings(ClosedModel):
    """The HTTP ingress deployment."""

    cpus_per_replica: Annotated[float, Field(ge=0)] = 0.5
    resources: CustomResources = Field(default_factory=dict)
    """Ray's custom resources that one replica takes."""
    max_ongoing_requests: Annotated[int, Field(ge=1)] = 10_000
    data_plane: Literal["relay", "handle"] = "relay"
    """How tokens come from the engine replica: `relay` over HTTP from a port the replica opens,
    `handle` through Ray Serve's deployment handle."""


class RequestLogSettings(ClosedModel):
    """A line for each request that was in an engine, without its text: what `tideserve replay` reads."""

    enabled: bool = True
    directory: str | None = None
    """Where each node keeps its files, an absolute path; by default beside Ray Serve's own logs."""
    max_bytes: Annotated[int, Field(ge=1 << 20)] = 256 << 20
    """Of one model on one node. The oldest files make room for new ones."""

    @field_validator("directory")
    @classmethod
    def _absolute(cls, directory: str | None) -> str | None:
        if directory is not None and not directory.startswith("/"):
            raise ValueError("must be an absolute path, the same on every node")
        return directory


class AppSettings(ClosedModel):
    """The `args:` of a Tideserve application."""

    models: Annotated[tuple[ModelSettings, ...], Field(min_length=1)]
    http: HttpSettings = HttpSettings()
    ingress: IngressSettings = IngressSettings()
    request_log: RequestLogSettings = RequestLogSettings()

    @model_validator(mode="after")
    def _distinct(self) -> AppSettings:
        for what in ("name", "deployment_name"):
            seen: set[str] = set()
            for model in self.models:
                value = getattr(model, what)
                if value in seen:
                    raise ValueError(f"models: two models have the {what} {value!r}; each needs its own")
                seen.add(value)
        return self
