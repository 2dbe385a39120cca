"""Hardware profiles by name or from a file, and the one for a configuration."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from replay.profile import Profile
from serve_app.settings.document import Document, parse_yaml, read_text
from serve_app.settings.knobs import StartingValues
from serve_app.settings.settings_error import SettingsError, from_pydantic, shown
from serve_app.settings.tree import EMBEDDED, AppSettings, ModelSettings

_PACKAGE = "replay.profiles"
_SUFFIXES = (".yaml", ".yml")
_FALLBACK = "a100-80gb"
# By Ray's names of accelerator types.
_BY_ACCELERATOR = {"A100": "a100-80gb", "A100-80G": "a100-80gb", "H100": "h100", "H200": "h200", "L4": "l4"}


def profile_names() -> tuple[str, ...]:
    """The profiles that come with Tideserve."""
    files = resources.files(_PACKAGE).iterdir()
    return tuple(sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml")))


def load_profile(name_or_path: str | Path) -> Profile:
    """A profile by its name, or from a fleet file: what ends in .yaml, or has a slash.

    Raises SettingsError for an unknown name, a file that cannot be read, and each key of it that is wrong,
    with its line, value and bound.
    """
    return parse_profile(*_opened(name_or_path))


def load_starting_values(name_or_path: str | Path) -> dict[str, Any]:
    """The values of a profile for the knob `starting_values`, as plain data.

    What its file leaves out, such as the cold start where none was measured, the knob leaves out too.

    Raises:
        SettingsError: as `load_profile`, and for a value that is out of the knob's bounds.
    """
    text, where = _opened(name_or_path)
    profile = parse_profile(text, where)
    try:
        return starting_values(profile)
    except ValidationError as error:
        raise _placed(where, parse_yaml(text, where), from_pydantic(error).problems) from None


def starting_values(profile: Profile) -> dict[str, Any]:
    """The knob `starting_values` that `profile` comes to. Raises pydantic's ValidationError."""
    names = [name for name in StartingValues.model_fields if name in profile.model_fields_set]
    given = StartingValues.model_validate({name: getattr(profile, name) for name in names})
    return given.model_dump(mode="json", exclude_unset=True)


def parse_profile(text: str, where: str) -> Profile:
    """The profile written in `text`; errors are told to be in the file `where`.

    Raises SettingsError as `load_profile`.
    """
    document = parse_yaml(text, where)
    if not isinstance(document.value, dict):
        raise SettingsError([f"{where}: must be a mapping with the fields of a profile"])
    try:
        profile = Profile.model_validate(document.value)
    except ValidationError as error:
        raise _placed(where, document, from_pydantic(error).problems) from None
    problems = _contradictions(profile)
    if problems:
        raise _placed(where, document, problems)
    return profile


def _opened(name_or_path: str | Path) -> tuple[str, str]:
    """The text of a profile by its name, or of a file, and what errors call it."""
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or "/" in text or text.endswith(_SUFFIXES):
        return read_text(Path(name_or_path)), text
    if text not in profile_names():
        raise SettingsError(
            [f"profile = {shown(text)}: must be one of {', '.join(profile_names())}, or a .yaml file"]
        )
    file = resources.files(_PACKAGE).joinpath(f"{text}.yaml")
    return file.read_text(encoding="utf-8"), f"{text}.yaml"


def _placed(where: str, document: Document, problems: Iterable[str]) -> SettingsError:
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


@dataclass(frozen=True, slots=True)
class ChosenProfile:
    """A profile, and a sentence that says which one it is, why, and where it does not fit."""

    profile: Profile
    why: str


def profile_for(settings: AppSettings | ModelSettings) -> ChosenProfile:
    """The profile nearest to a configuration: its GPU type, with the model's own limits and GPUs in place.

    Of several models, the first that generates.

    Raises:
        SettingsError: for a limit of the model that no profile can have.
    """
    model = _model(settings) if isinstance(settings, AppSettings) else settings
    name = _BY_ACCELERATOR.get(model.accelerator_type or "") if model.device == "gpu" else None
    profile = load_profile(name or _FALLBACK)
    given: dict[str, Any] = {"max_num_seqs": model.max_num_seqs, "gpus": model.tensor_parallel_size}
    if model.max_num_batched_tokens is not None:
        given["max_num_batched_tokens"] = model.max_num_batched_tokens
    try:
        chosen = Profile.model_validate({**profile.model_dump(), **given})
    except ValidationError as error:  # settings bound these less than a profile does
        raise from_pydantic(error) from None
    return ChosenProfile(chosen, _why(model, chosen, known=name is not None))


def _model(settings: AppSettings) -> ModelSettings:
    return next((model for model in settings.models if model.task == "generate"), settings.models[0])


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
        doubts.append("its step time is an 8B model's in bf16")
    doubts.append("measure yours with `tideserve capacity`")
    limits = f"max_num_seqs {profile.max_num_seqs} as configured"
    return f"profile {profile.name}: {reason}; {limits}; {'; '.join(doubts)}"
