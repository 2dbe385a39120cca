"""Pages in frames of one browser's window, each of its own width, that tell what they look like.

A window of a headless browser is at least 500 pixels wide, and each start takes a second or two.
"""

import html
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from tests.loadtests.drawing.browser import FRAMES, Opened, opened

# Runs in each page after its own scripts.
_LOOK = """
<script>
const failures = [];
addEventListener("error", (event) => failures.push(event.message));
const name = (each) => `${each.tagName}.${each.getAttribute("class")}: ${each.textContent.slice(0, 40)}`;
const look = () => {
  const overlaps = [];
  for (const svg of document.querySelectorAll("main svg")) {
    const texts = [...svg.querySelectorAll("text")].map((text) => [text, text.getBoundingClientRect()]);
    texts.forEach(([text, one], index) => {
      for (const [other, two] of texts.slice(index + 1)) {
        const wide = Math.min(one.right, two.right) - Math.max(one.left, two.left);
        const high = Math.min(one.bottom, two.bottom) - Math.max(one.top, two.top);
        if (wide > 1 && high > 2) overlaps.push(`${name(text)} / ${name(other)}`);
      }
    });
  }
  const root = document.documentElement;
  const shown = (each) => !each.hidden && each.clientWidth > 0 && !each.closest(".scrolling");
  const wide = [...document.querySelectorAll("section, li, dl")].filter(
    (each) => shown(each) && each.scrollWidth > each.clientWidth + 1);
  const outside = [...document.querySelectorAll("main svg text")].filter((text) => {
    const { left, right } = text.getBoundingClientRect();
    return left < -0.5 || right > root.clientWidth + 0.5;
  });
  const style = (selector) => {
    const element = document.querySelector(selector);
    return element ? getComputedStyle(element) : {};
  };
  return {
    frame: window.name,
    width: innerWidth,
    overlaps,
    failures,
    overflow: root.scrollWidth - root.clientWidth,
    wide: wide.map(name),
    outside: outside.map(name),
    ground: style("body").backgroundColor,
    ink: style("body").color,
    panel: style("section").backgroundColor,
    soft: style(".tick").fill,
    tall: root.scrollHeight,
    dom: document.querySelector("main").innerHTML,
    stamp: document.getElementById("stamp").textContent,
  };
};
setTimeout(async () => {
  const seen = look();
  if (typeof reader === "function") seen.read = await reader();
  parent.postMessage(seen, "*");
}, 300);
</script>
"""
_WINDOW = """<!doctype html><meta charset="utf-8"><body style="margin:0;display:flex;background:#fff">
<script>
addEventListener("message", (event) => {
  const seen = document.createElement("pre");
  seen.className = "seen";
  seen.hidden = true;
  seen.textContent = JSON.stringify(event.data);
  document.body.append(seen);
});
</script>
%s
"""


@dataclass(frozen=True)
class Frame:
    """A page, and how wide its frame is."""

    name: str
    text: str
    width: int
    reader: str = ""
    """JavaScript that declares `async function reader()`: what a reader does, and what it then sees."""


@dataclass(frozen=True)
class Looks:
    """What the frames told, by name, and the whole window."""

    window: Opened
    seen: dict[str, dict[str, Any]]


def looked_at(frames: Sequence[Frame], folder: Path, height: int, shot: bool = False) -> Looks:
    """All `frames` side by side in one window."""
    shown = []
    for frame in frames:
        file = folder / f"{frame.name}.html"
        text = frame.text.replace("</title>", f"</title>{FRAMES}")
        reader = f"<script>{frame.reader}</script>" if frame.reader else ""
        file.write_text(text.replace("</body>", f"{reader}{_LOOK}</body>"), encoding="utf-8")
        size = f"width:{frame.width}px;height:{height}px;border:0;flex:none"
        shown.append(f'<iframe name="{frame.name}" src="{file.name}" style="{size}"></iframe>')
    window = opened(_WINDOW % "".join(shown), folder, sum(frame.width for frame in frames), height, shot)
    told = re.findall(r'<pre class="seen" hidden="">(.*?)</pre>', window.dom, re.DOTALL)
    seen = [json.loads(html.unescape(text)) for text in told]
    return Looks(window, {each["frame"]: each for each in seen})


def pixels_of(path: Path) -> npt.NDArray[np.uint8]:
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB"))


def channels(colour: str) -> list[int]:
    return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]


def share_of(pixels: npt.NDArray[np.uint8], colour: str) -> float:
    """Return the share of the pixels that are of exactly one colour."""
    return float((pixels == channels(colour)).all(axis=2).mean())
