"""The colours of pages and pictures: one name each, for a light and for a dark ground.

The hues are Okabe and Ito's ("Color Universal Design", 2008), which people with any common form of colour
blindness tell apart, shifted in lightness so that every line has a contrast of 3:1 to its ground and every
text 4.5:1 (WCAG 2.2, 1.4.3 and 1.4.11). No meaning rests on colour alone: shape, height or words say it too.
"""

from collections.abc import Mapping

LIGHT: Mapping[str, str] = {
    "ground": "#f6f7f9",
    "panel": "#ffffff",
    "ink": "#16202b",
    "soft": "#526070",
    "line": "#d7dde4",
    "grid": "#e8ecf0",
    "accent": "#0065a3",
    "arrivals": "#5f7387",
    "ready": "#0072b2",
    "starting": "#b87400",
    "draining": "#8a6d9c",
    "target": "#16202b",
    "wanted": "#a63d7f",
    "queued": "#2a8fc4",
    "held": "#c14f00",
    "serving": "#005a8f",
    "idle": "#5c9bc6",
    "warming": "#c98500",
    "ttft": "#0072b2",
    "itl": "#a63d7f",
    "ok": "#007d57",
    "missed": "#b54a00",
    "empty": "#e3e8ed",
    "other": "#66727f",
}

DARK: Mapping[str, str] = {
    "ground": "#0e141b",
    "panel": "#161e27",
    "ink": "#e9eef4",
    "soft": "#a3b1c0",
    "line": "#2f3c4a",
    "grid": "#222d39",
    "accent": "#6cbcf0",
    "arrivals": "#90a5b9",
    "ready": "#4aa9e3",
    "starting": "#f0a92e",
    "draining": "#b79bc9",
    "target": "#f4f7fa",
    "wanted": "#e58bc2",
    "queued": "#6cc3f0",
    "held": "#f5854a",
    "serving": "#6cc3f0",
    "idle": "#44799c",
    "warming": "#f0a92e",
    "ttft": "#4aa9e3",
    "itl": "#e58bc2",
    "ok": "#2fbf93",
    "missed": "#f5854a",
    "empty": "#25303c",
    "other": "#93a1b0",
}


_GROUNDS_AND_TEXTS = ("ground", "panel", "ink", "soft", "line", "grid", "accent")
_STANDS_FOR = {
    "answered": "ok", "running": "ok", "engine": "ok", "pending": "other", "compared": "other",
    "limit": "ink", "bound": "ink", "cold": "held", "rejected": "starting", "failed": "missed",
    "broken": "wanted", "abandoned": "draining", "untold": "empty",
    "pass": "ok", "fail": "missed", "invalid": "ink",
    **{f"tone-{order}": name for order, name in enumerate(
        ("starting", "queued", "wanted", "serving", "held", "draining", "other"))},
}  # fmt: skip
"""Classes that have another's colour. The `tone-`s are those of the phases of a start, in their order."""


def rules() -> str:
    """Return the colours as CSS. A page follows the reader's system, or its attribute `data-theme`.

    Each class that is named as a colour, or stands for one, has that colour as its `--tone`.
    """
    light, dark = (" ".join(f"--{name}: {value};" for name, value in each.items()) for each in (LIGHT, DARK))
    dark += ' --ground-offered: "Light"; color-scheme: dark;'
    named = {name: name for name in LIGHT if name not in _GROUNDS_AND_TEXTS} | _STANDS_FOR
    return "\n".join(
        [
            f':root {{ {light} --ground-offered: "Dark"; color-scheme: light; }}',
            "@media screen and (prefers-color-scheme: dark) "
            f'{{ :root:not([data-theme="light"]) {{ {dark} }} }}',
            f'@media screen {{ :root[data-theme="dark"] {{ {dark} }} }}',
            *(f".{name} {{ --tone: var(--{of}); }}" for name, of in named.items()),
        ]
    )
