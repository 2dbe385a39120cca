import math
from collections.abc import Mapping

import numpy as np
import pytest

from loadtests.drawing.json_numbers import finite, fixed, series, short
from serve_app.ui.palette import DARK, LIGHT

TEXTS = ("ink", "soft", "accent", "ok", "missed")
SHAPES = (
    "arrivals", "ready", "starting", "draining", "target", "wanted", "queued", "held", "serving", "idle",
    "warming", "ttft", "itl", "ok", "missed", "other", "accent",
)  # fmt: skip


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2.2 defines it."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_every_text_and_every_shape_stands_out_from_its_ground(colours: Mapping[str, str]) -> None:
    texts = {name: contrast(colours[name], colours[at]) for name in TEXTS for at in ("panel", "ground")}
    shapes = {name: contrast(colours[name], colours["panel"]) for name in SHAPES}

    assert {name: ratio for name, ratio in texts.items() if ratio < 4.5} == {}
    assert {name: ratio for name, ratio in shapes.items() if ratio < 3.0} == {}


def test_both_grounds_have_the_same_names() -> None:
    assert LIGHT.keys() == DARK.keys()


def test_infinite_numbers_become_null() -> None:
    assert short(math.inf) is None
    assert fixed(math.nan, 2) is fixed(None, 2) is None
    assert series(np.array([1.0, math.nan])) == [1, None]
    assert finite({"a": [np.float64("nan"), (1.5, np.int64(2))]}) == {"a": [None, [1.5, 2]]}


def test_digits_are_kept_as_far_as_asked_and_whole_numbers_are_whole() -> None:
    assert (short(1 / 3, 3), short(12345678.0), fixed(2 / 3, 2)) == (0.333, 12345678, 0.67)
