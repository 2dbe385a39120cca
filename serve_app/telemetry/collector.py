"""The OpenTelemetry collector that gets the spans, from the settings and the standard `OTEL_*` variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from serve_app.settings.settings_error import SettingsError
from serve_app.settings.telemetry import TraceSettings

_DEFAULT_RATIO = 0.1
_PORTS = {"grpc": "http://localhost:4317", "http/protobuf": "http://localhost:4318"}
_PATH = "/v1/traces"


@dataclass(frozen=True, slots=True)
class Collector:
    """Where spans go, from the settings and the `OTEL_*` variables. A setting wins over a variable."""

    endpoint: str
    protocol: str
    sampling_ratio: float
    service_name: str
    resource: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, settings: TraceSettings, environment: Mapping[str, str]) -> Collector | None:
        """Return the collector; None if traces are off.

        Raises:
            SettingsError: `headers_file` or a variable has an invalid value.
        """
        if not settings.enabled or environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
            return None

        def variable(name: str) -> str:
            of_traces = environment.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}", "")
            return of_traces or environment.get(f"OTEL_EXPORTER_OTLP_{name}", "")

        protocol = settings.protocol or variable("PROTOCOL") or "grpc"
        if protocol not in _PORTS:
            raise SettingsError(
                [f"OTEL_EXPORTER_OTLP_PROTOCOL = {protocol!r}: must be grpc or http/protobuf"]
            )
        base = environment.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
        if base and protocol != "grpc":
            base = base.rstrip("/") + _PATH
        endpoint = settings.endpoint or environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "") or base
        endpoint = endpoint or _PORTS[protocol]
        if protocol != "grpc" and not urlsplit(endpoint).path.strip("/"):
            endpoint = endpoint.rstrip("/") + _PATH
        resource = _pairs(
            "OTEL_RESOURCE_ATTRIBUTES", environment.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",")
        )
        service = environment.get("OTEL_SERVICE_NAME") or resource.pop("service.name", "") or "tideserve"
        if settings.headers_file is None:
            headers = _pairs("OTEL_EXPORTER_OTLP_HEADERS", variable("HEADERS").split(","))
        else:
            key = f"telemetry.traces.headers_file = {settings.headers_file!r}"
            try:
                lines = Path(settings.headers_file).read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise SettingsError([f"{key}: cannot be read: {type(error).__name__}"]) from None
            headers = _pairs(key, lines)
        ratio = settings.sampling_ratio
        return cls(
            endpoint,
            protocol,
            _ratio(environment) if ratio is None else ratio,
            settings.service_name or service,
            {**resource, **settings.resource_attributes},
            {name.lower(): value for name, value in headers.items()},
        )

    def variables(self) -> dict[str, str]:
        """Return the `OTEL_*` variables with which vLLM's own exporter sends to this collector."""
        resource = ",".join(f"{name}={quote(value)}" for name, value in self.resource.items())
        headers = ",".join(f"{name}={quote(value)}" for name, value in self.headers.items())
        return {
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": self.protocol,
            "OTEL_EXPORTER_OTLP_TRACES_HEADERS": headers,
            "OTEL_SERVICE_NAME": self.service_name,
            "OTEL_RESOURCE_ATTRIBUTES": resource,
            # The head decision is made in the ingress. It comes to vLLM with the parent.
            "OTEL_TRACES_SAMPLER": "parentbased_always_on",
        }


def _pairs(source: str, items: Sequence[str]) -> dict[str, str]:
    found = {}
    for item in filter(None, map(str.strip, items)):
        name, equals, value = item.partition("=")
        if not equals or not name.strip():
            # The entry may be a secret, so the error does not show it.
            raise SettingsError([f"{source}: each entry must be name=value"])
        found[name.strip()] = unquote(value.strip())
    return found


def _ratio(environment: Mapping[str, str]) -> float:
    sampler = environment.get("OTEL_TRACES_SAMPLER", "").removeprefix("parentbased_")
    given = environment.get("OTEL_TRACES_SAMPLER_ARG", "")
    if sampler in ("always_on", "always_off"):
        return float(sampler == "always_on")
    if sampler != "traceidratio" or not given:
        return _DEFAULT_RATIO
    with suppress(ValueError):
        if 0.0 <= (ratio := float(given)) <= 1.0:
            return ratio
    raise SettingsError([f"OTEL_TRACES_SAMPLER_ARG = {given!r}: must be a number from 0 to 1"])
