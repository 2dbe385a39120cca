"""What screenshots show."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image


def pixels_of(path: Path) -> npt.NDArray[np.uint8]:
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB"))


def channels(colour: str) -> list[int]:
    return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]


def share_of(pixels: npt.NDArray[np.uint8], colour: str) -> float:
    """Return the share of the pixels that are of exactly one colour."""
    return float((pixels == channels(colour)).all(axis=2).mean())
