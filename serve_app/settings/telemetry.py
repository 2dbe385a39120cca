"""The settings of traces."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from serve_app.settings.closed_model import ClosedModel

_ENDPOINT = r"^https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[!-~]*)?$"
_RESERVED = ("service.name", "service.instance.id")
Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9._-]*$", max_length=100)]
Text = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[ -~]+$")]


class TraceSettings(ClosedModel):
    """OpenTelemetry traces of requests, cold starts and scaling decisions.

    A value that is not set here comes from the standard `OTEL_*` variables of each process.
    """

    enabled: bool = False
    """Whether traces go to a collector."""
    endpoint: Annotated[str, Field(pattern=_ENDPOINT, max_length=2048)] | None = None
    """The URL of the collector; by default `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`, then
    `OTEL_EXPORTER_OTLP_ENDPOINT`, then the protocol's port on this machine. With `http/protobuf`, a URL
    without a path gets `/v1/traces`."""
    protocol: Literal["grpc", "http/protobuf"] | None = None
    """By default `OTEL_EXPORTER_OTLP_TRACES_PROTOCOL`, then `OTEL_EXPORTER_OTLP_PROTOCOL`, then `grpc`."""
    headers_file: Annotated[str, Field(pattern=r"^/.+", max_length=4096)] | None = None
    """An absolute path of a file with one header `name=value` per line, such as a mounted secret; by default
    `OTEL_EXPORTER_OTLP_TRACES_HEADERS`, then `OTEL_EXPORTER_OTLP_HEADERS`."""
    sampling_ratio: Annotated[float, Field(ge=0, le=1)] | None = None
    """The share of the requests without a `traceparent` that is sampled; by default
    `OTEL_TRACES_SAMPLER_ARG`, then 0.1. A `traceparent` says itself whether it is sampled."""
    service_name: Text | None = None
    """By default `OTEL_SERVICE_NAME`, then `tideserve`."""
    resource_attributes: Annotated[dict[Name, Text], Field(max_length=32)] = Field(default_factory=dict)
    """Attributes of every span's resource, in addition to `OTEL_RESOURCE_ATTRIBUTES`."""
    record_prompts: bool = False
    """Whether spans have the prompts of requests, at most 16 KiB of each. Spans never have answers."""

    @field_validator("resource_attributes")
    @classmethod
    def _not_reserved(cls, given: dict[str, str]) -> dict[str, str]:
        for name in _RESERVED:
            if name in given:
                raise ValueError(f"{name} = {given[name]!r}: Tideserve sets it; see service_name")
        return given


class TelemetrySettings(ClosedModel):
    """What Tideserve sends to other systems about itself."""

    traces: TraceSettings = TraceSettings()
