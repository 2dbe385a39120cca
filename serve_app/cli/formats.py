"""Numbers and names as people read them."""

import math
from collections.abc import Container, Sequence

_LONGEST_NAME = 60


def seconds(value: float, digits: int = 3) -> str:
    """Return a duration with a suitable unit: `182 ms`, `1.25 s`, `180 s`, `12 min`, `2.5 h`.

    Durations below ten minutes are in seconds, because bounds of cold starts are set in seconds.
    """
    if not math.isfinite(value):
        return "-"
    if abs(value) < 0.9995:
        return f"{1000 * value:.{digits}g} ms"
    if abs(value) < 600:
        return f"{value:.{digits}g} s"
    return f"{value / 60:.{digits}g} min" if abs(value) < 7200 else f"{value / 3600:.{digits}g} h"


def count(number: int, noun: str) -> str:
    """Return `1 request`, `2 requests`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def percent(share: float) -> str:
    """Return a share as `99.4 %`. A share below 1 is never rounded up to 100 %."""
    if not math.isfinite(share):
        return "-"
    shown = 100 * share
    if 99.95 <= shown < 100:
        return f"{math.floor(shown * 100) / 100:.2f} %"
    return f"{shown:.1f} %" if shown < 100 else "100 %"


def whole(value: float) -> str:
    """Return `48,213`."""
    return f"{value:,.0f}" if math.isfinite(value) else "-"


def columns(rows: Sequence[Sequence[str]], left: Container[int] = (0,)) -> list[str]:
    """Return rows as lines of aligned columns: those `left` begin at the left, all others are numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = enumerate(zip(row, widths, strict=True))
        padded = [cell.ljust(width) if at in left else cell.rjust(width) for at, (cell, width) in cells]
        lines.append("  ".join(padded).rstrip())
    return lines


def plain(name: str, longest: int = _LONGEST_NAME) -> str:
    """Return untrusted text on one line, shortened, and without control characters."""
    text = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in name)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
