from typing import Any

import pytest

from serve_app.settings.knobs import Knobs, LiveKnobs, read_user_config
from serve_app.settings.model_names import LoraSettings
from serve_app.settings.settings_error import SettingsError
from serve_app.settings.tree import ModelSettings

DEFAULTS = {"tide": Knobs(), "other": Knobs(), "plain": Knobs()}
LORA = {"tide": LoraSettings(), "other": LoraSettings(), "plain": None}


def config(**adapters: dict[str, str]) -> dict[str, Any]:
    return {"autoscaling": {model: {"adapters": sources} for model, sources in adapters.items()}}


@pytest.mark.parametrize(
    "source",
    [
        "/lora/pirate",
        "org/pirate",
        "hf:org/pirate",
        "org/pirate@v1.0",
        "hf:org/pirate@refs/pr/1",
        "s3://bucket/pirate",
        "gs://bucket/a/b",
        "embedded",
    ],
)
def test_sources(source: str) -> None:
    assert Knobs(adapters={"pirate": source}).adapters == {"pirate": source}


@pytest.mark.parametrize("source", ["", "pirate", "./pirate", "org/pirate/more", "hf:pirate", "a b/c"])
def test_other_texts_are_no_sources(source: str) -> None:
    with pytest.raises(
        SettingsError, match=r"autoscaling\['tide'\].adapters.pirate = .*: must be the absolute"
    ):
        read_user_config(DEFAULTS, config(tide={"pirate": source}), LORA)


def test_names_are_distinct_and_need_the_setting() -> None:
    given = config(
        tide={"pirate": "/a", "other": "/b"}, other={"pirate": "/c", "sailor": "/d"}, plain={"cook": "/e"}
    )
    given["autoscaling"]["plain"]["aliases"] = ["pirate"]

    with pytest.raises(SettingsError) as refused:
        read_user_config(DEFAULTS, given, LORA)

    assert refused.value.problems == [
        "autoscaling['tide'].adapters['other']: a model has this name already",
        "autoscaling['other'].adapters['pirate']: an adapter of 'tide' has this name already",
        "autoscaling['plain'].aliases[0] = 'pirate': an adapter of 'tide' has this name already",
        "autoscaling['plain'].adapters: the model has no setting `lora`",
    ]


def test_adapters_change_while_the_application_runs() -> None:
    live = LiveKnobs(DEFAULTS, LORA)
    live.apply(config(tide={"pirate": "/a"}))
    assert live.of("tide").adapters == {"pirate": "/a"}

    with pytest.raises(SettingsError):
        live.apply(config(plain={"pirate": "/a"}))
    assert live.of("tide").adapters == {"pirate": "/a"}

    live.apply({})
    assert live.of("tide").adapters == {}


def test_bounds_are_checked() -> None:
    with pytest.raises(ValueError, match="max_cached = 2 must be at least max_loaded = 4"):
        LoraSettings(max_cached=2)
    with pytest.raises(ValueError, match="max_rank"):
        ModelSettings.model_validate({"name": "tide", "lora": {"max_rank": 12}})
