"""The document in which ingress replicas tell the policy the served models and their knobs. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter

from serve_app.settings.knobs import IngressKnobs, Knobs
from serve_app.settings.telemetry import TraceSettings
from serve_app.wire.versions import Share


@dataclass(frozen=True, slots=True)
class ServedVariant:
    """One variant of a model as the policy knows it (`serve_app.settings.variants`)."""

    name: str
    deployment: str
    resources: Mapping[str, float]
    identity: str
    usd_per_hour: float
    preemptible: bool
    min_replicas: int
    max_replicas: int
    assumed_speed: float
    kind: str = ""
    """Equal for variants whose replicas have the same speed: the same GPUs, weights and arguments."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model as the policy knows it."""

    name: str
    deployment: str
    """The engine deployment; with variants, the name under which the model is decided."""
    knobs: Knobs
    resources: Mapping[str, float] = field(default_factory=dict)
    """Ray resources of one replica, such as `{"GPU": 1}`."""
    identity: str = ""
    """The engine's identity (`serve_app.settings.identity`)."""
    variants: tuple[ServedVariant, ...] = ()
    """Empty for a model with one engine deployment. Resources and identity are those of the first variant."""
    version_of: str = ""
    """The engine deployment of the old version; "" for a model."""
    share: float = 0.0
    """The share of a version by its settings, and the next of its copies."""
    shadow: float = 0.0

    @property
    def deployments(self) -> tuple[str, ...]:
        return tuple(variant.deployment for variant in self.variants) or (self.deployment,)

    @property
    def start_share(self) -> Share:
        return Share.by_settings(self.share, self.shadow, self.identity)


_model = TypeAdapter(ServedModel)
_amounts = TypeAdapter(dict[str, float])


@dataclass(frozen=True, slots=True)
class ServedApplication:
    """Everything served by one application."""

    models: Mapping[str, ServedModel]
    """By `ServedModel.deployment`."""
    ingress: IngressKnobs
    rejected: str = ""
    """The errors of knobs that were rejected."""
    ingress_resources: Mapping[str, float] = field(default_factory=dict)
    """Ray resources of one ingress replica, such as `{"CPU": 0.5}`."""
    zygote: bool = True
    """Whether nodes keep zygotes."""
    model_preemption: bool = False
    """Whether models take places from each other."""
    traces: TraceSettings | None = None
    """Where the spans of decisions go; None if nowhere."""

    def engines(self) -> dict[str, ServedModel]:
        """Return every engine deployment, as a model without variants."""
        found = {}
        for model in self.models.values():
            if not model.variants:
                found[model.deployment] = model
            for each in model.variants:
                own = {name: getattr(each, name) for name in ("deployment", "resources", "identity")}
                found[each.deployment] = replace(model, variants=(), **own)
        return found

    def document(self, at: float) -> dict[str, Any]:
        """Return the document as plain data, written at Unix time `at`."""
        return {
            "at": at,
            "models": [_model.dump_python(model, mode="json") for model in self.models.values()],
            "ingress": self.ingress.model_dump(mode="json"),
            "rejected": self.rejected,
            "ingress_resources": dict(self.ingress_resources),
            "zygote": self.zygote,
            "model_preemption": self.model_preemption,
            **({} if self.traces is None else {"traces": self.traces.model_dump(mode="json")}),
        }


def read_served(document: Mapping[str, Any]) -> ServedApplication:
    """Read a `ServedApplication.document()`. Raises ValidationError, KeyError or TypeError if invalid."""
    models = [_model.validate_python(item) for item in document["models"]]
    return ServedApplication(
        {model.deployment: model for model in models},
        IngressKnobs.model_validate(document["ingress"]),
        str(document["rejected"]),
        _amounts.validate_python(document["ingress_resources"]),
        bool(document["zygote"]),
        bool(document.get("model_preemption", False)),  # absent from those of 0.1.0
        TraceSettings.model_validate(document["traces"]) if "traces" in document else None,
    )
