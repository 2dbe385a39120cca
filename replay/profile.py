"""A hardware profile: the step time, limits, cold start and price of one replica, by name or from a file."""

import re
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, ValidationError

from serve_app.ingress.replica_set import ASSUMED_LOAD_S
from serve_app.policy.capacity_model import StepTime
from serve_app.settings.closed_model import ClosedModel
from serve_app.settings.document import Document, parse_yaml, read_text
from serve_app.settings.knobs import StartingValues
from serve_app.settings.model_names import MOST_ADAPTERS, LoraSettings
from serve_app.settings.settings_error import SettingsError, from_pydantic, shown
from serve_app.settings.tree import EMBEDDED, AppSettings, ModelSettings

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Latency = NotNegative | None
"""Seconds; None where the percentile reaches what was never answered."""
_PACKAGE = "replay.profiles"
_SUFFIXES = (".yaml", ".yml")
_FALLBACK = "a100-80gb"
# By Ray's names of accelerator types.
_BY_ACCELERATOR = {"A100": "a100-80gb", "A100-80G": "a100-80gb", "H100": "h100", "H200": "h200", "L4": "l4"}


class Knee(ClosedModel):
    """The highest rate at which one replica met its targets under Poisson arrivals, and all measured rates.

    Replays compute with the step time and do not use the knee.
    """

    prompt_tokens: Annotated[int, Field(ge=1)]
    output_tokens: Annotated[int, Field(ge=1)]
    rps: NotNegative
    """Requests a second; 0 if even the lowest rate of the curve missed a target."""
    bound: Literal["TTFT", "ITL", "queue", "client", "none"]
    """The limit that the next higher rate exceeded: a target, the queue, or the client's own speed; `none` if
    no rate failed."""
    ttft_target_s: Annotated[float, Field(gt=0)] | None
    itl_target_s: Annotated[float, Field(gt=0)] | None
    """None: an empty replica misses it, so the search left it out."""
    percentile: Annotated[int, Field(ge=1, le=99)]
    ttft_s: Latency
    itl_s: Latency
    """At `rps`, or at the lowest rate of the curve if `rps` is 0."""
    formula_rps: Positive
    """The rate that the policy's formula computes from the step time, for the same requests and targets."""
    curve: Annotated[tuple[tuple[Positive, Latency, Latency, NotNegative], ...], Field(min_length=1)]
    """Rising: requests a second, TTFT and ITL at the percentile, share of requests within both targets."""


class Profile(ClosedModel):
    """One replica of one model on one kind of GPU. The fields of a `--fleet` file."""

    name: str
    source: str
    """The source of the numbers: a measurement with its machine and date, or published figures."""
    gpu: str
    gpus: Annotated[int, Field(ge=1, le=64)] = 1
    """GPUs of one replica (tensor parallel)."""
    price_per_gpu_hour: NotNegative = 0.0
    """US dollars; 0 where no price is known."""

    step_base_s: Positive
    step_per_sequence_s: NotNegative
    step_per_kv_token_s: NotNegative
    step_per_prefill_token_s: NotNegative
    fit_error: NotNegative = 0.0
    """Median relative error of the step-time model on what it was fitted to; 0 where it was not fitted."""

    kv_cache_tokens: Annotated[int, Field(ge=1024, le=1_000_000_000)]
    max_num_seqs: Annotated[int, Field(ge=1, le=4096)] = 64
    max_num_batched_tokens: Annotated[int, Field(ge=16, le=1_048_576)] = 8192
    """Tokens of one step: a longer prompt is prefilled in chunks of this size."""

    adapter_load_s: NotNegative = ASSUMED_LOAD_S
    """Seconds for which the load of a LoRA adapter occupies the engine."""
    max_cached_adapters: Annotated[int, Field(ge=1, le=MOST_ADAPTERS)] = LoraSettings().max_cached
    """Adapters that one replica keeps loaded, as the setting `lora.max_cached`."""
    cold_start_s: tuple[NotNegative, NotNegative] = (60.0, 90.0)
    """Least and most seconds from asking for a replica to its first request, drawn evenly."""
    warm_node_start_s: tuple[NotNegative, NotNegative] | None = None
    """The same on a warm node: one that was up and had vLLM imported. None: starts there are as long."""
    warm_nodes: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Replicas for which there are nodes that are always up. Replicas beyond them start on cold nodes."""
    cold_start_phases: Mapping[str, NotNegative] = {
        "process": 0.04,
        "imports": 0.16,
        "configuration": 0.04,
        "weights_and_kv_cache": 0.60,
        "serving_layer": 0.02,
        "warm_up": 0.12,
        "data_plane": 0.02,
    }
    """Each phase's share of it, in order."""
    knee: Knee | None = None
    """None where it was not measured."""

    @property
    def step(self) -> StepTime:
        """The coefficients as the policy's own model has them."""
        return StepTime(
            self.step_base_s,
            self.step_per_sequence_s,
            self.step_per_kv_token_s,
            self.step_per_prefill_token_s,
        )


def profile_names() -> tuple[str, ...]:
    """The names of the profiles that come with Tideserve."""
    files = resources.files(_PACKAGE).iterdir()
    return tuple(sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml")))


def load_profile(name_or_path: str | Path) -> Profile:
    """A profile by its name, or from a fleet file: a name that ends in .yaml or has a slash.

    Raises SettingsError for an unknown name, a file that cannot be read, and each wrong key in the file,
    with its line, value and bound.
    """
    return parse_profile(*_open(name_or_path))


def load_starting_values(name_or_path: str | Path) -> dict[str, Any]:
    """The values of a profile for the knob `starting_values`, as plain data; fields that its file leaves out
    are left out.

    Raises SettingsError as `load_profile`, and for a value that is out of the knob's bounds.
    """
    text, where = _open(name_or_path)
    profile = parse_profile(text, where)
    try:
        return starting_values(profile)
    except ValidationError as error:
        raise _place(where, parse_yaml(text, where), from_pydantic(error).problems) from None


def starting_values(profile: Profile) -> dict[str, Any]:
    """The knob `starting_values` with the values of `profile`. Raises pydantic's ValidationError."""
    names = [name for name in StartingValues.model_fields if name in profile.model_fields_set]
    given = StartingValues.model_validate({name: getattr(profile, name) for name in names})
    return given.model_dump(mode="json", exclude_unset=True)


def parse_profile(text: str, where: str) -> Profile:
    """The profile written in `text`, from the file `where`. Raises SettingsError as `load_profile`."""
    document = parse_yaml(text, where)
    if not isinstance(document.value, dict):
        raise SettingsError([f"{where}: must be a mapping with the fields of a profile"])
    try:
        profile = Profile.model_validate(document.value)
    except ValidationError as error:
        raise _place(where, document, from_pydantic(error).problems) from None
    problems = _contradictions(profile)
    if problems:
        raise _place(where, document, problems)
    return profile


def _open(name_or_path: str | Path) -> tuple[str, str]:
    """The text of a profile by its name, or of a file, and the name for its errors."""
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or "/" in text or text.endswith(_SUFFIXES):
        return read_text(Path(name_or_path)), text
    if text not in profile_names():
        raise SettingsError(
            [f"profile = {shown(text)}: must be one of {', '.join(profile_names())}, or a .yaml file"]
        )
    file = resources.files(_PACKAGE).joinpath(f"{text}.yaml")
    return file.read_text(encoding="utf-8"), f"{text}.yaml"


def _place(where: str, document: Document, problems: Iterable[str]) -> SettingsError:
    """`problems`, each of which begins with its key, after the file and the line of that key."""
    return SettingsError(
        [f"{where}:{document.line([re.split(r'[ .:[]', problem)[0]])}: {problem}" for problem in problems]
    )


def _contradictions(profile: Profile) -> list[str]:
    problems = []
    for name in ("cold_start_s", "warm_node_start_s"):
        least, most = getattr(profile, name) or (0.0, 0.0)
        if least > most:
            problems.append(f"{name} = {shown([least, most])}: the first must be at most the second")
    shares = sum(profile.cold_start_phases.values())
    if abs(shares - 1.0) > 0.01:
        problems.append(f"cold_start_phases: the shares must add up to 1 within 0.01, and make {shares:.4g}")
    return problems


class ChosenProfile(NamedTuple):
    """A profile, and a sentence that says which one it is, why, and where it does not fit."""

    profile: Profile
    why: str


def profile_for(settings: AppSettings | ModelSettings) -> ChosenProfile:
    """The profile of a configuration's GPU type, with the limits and GPUs of its first model that generates.

    Raises SettingsError for a limit of the model that no profile can have.
    """
    model = settings
    if isinstance(model, AppSettings):
        model = next((one for one in model.models if one.task == "generate"), model.models[0])
    name = _BY_ACCELERATOR.get(model.accelerator_type or "") if model.device == "gpu" else None
    profile = load_profile(name or _FALLBACK)
    given: dict[str, Any] = {"max_num_seqs": model.max_num_seqs, "gpus": model.ranks}
    if model.max_num_batched_tokens is not None:
        given["max_num_batched_tokens"] = model.max_num_batched_tokens
    try:
        chosen = Profile.model_validate({**profile.model_dump(), **given})
    except ValidationError as error:  # settings bound these less than a profile does
        raise from_pydantic(error) from None
    return ChosenProfile(chosen, _why(model, chosen, known=name is not None))


def _why(model: ModelSettings, profile: Profile, *, known: bool) -> str:
    if model.device == "cpu":
        reason = f"{model.name} runs on the CPU, so the fallback stands in for a GPU"
    elif known:
        reason = f"accelerator_type of {model.name} is {model.accelerator_type}"
    else:
        named = model.accelerator_type or "any"
        reason = f"there is none for accelerator_type {named} of {model.name}, so this is the fallback"
    doubts = []
    if profile.gpus > 1:
        doubts.append(f"{profile.gpus} GPUs a replica are counted, but its step time is one GPU's")
    if model.model != EMBEDDED or model.device == "gpu":
        doubts.append("its step time is a 7B or 8B model's in bf16")
    doubts.append("measure yours with `tideserve capacity`")
    limits = f"max_num_seqs {profile.max_num_seqs} as configured"
    return f"profile {profile.name}: {reason}; {limits}; {'; '.join(doubts)}"
