from collections.abc import Mapping

import pytest

from loadtests.drawing.palette import DARK, LIGHT

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
