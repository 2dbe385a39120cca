"""The page in a real browser: that it draws, without an error, and answers a reader's hand."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from serve_app.replay.report.html import page
from tests.replay.report import samples

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(
    BROWSER is None, reason="there is no chromium, chromium-browser or google-chrome on PATH"
)
HOSTILE = "</script><script>document.body.remove()</script>"

# On its virtual clock a headless browser paints no frames, so frames are timers here.
FRAMES = "<script>window.requestAnimationFrame = (draw) => setTimeout(draw, 0);</script>"
# Runs after the page's own script, as a reader would: hovers, walks through the decisions, zooms, searches.
READER = """
<script>
const seen = {};
const chart = document.querySelector(".chart");
const frame = () => new Promise((done) => setTimeout(done, 50));
const key = (name) => chart.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true }));
const pointer = (kind, share) => {
  const { left, top, width } = chart.getBoundingClientRect();
  const at = { clientX: left + share * width, clientY: top + 60, button: 0, pointerId: 1, bubbles: true };
  chart.dispatchEvent(new PointerEvent(kind, at));
};
chart.setPointerCapture = () => {};
(async () => {
  const ticks = () => [...document.querySelectorAll(".axis text")].map((text) => text.textContent).join(" ");
  const card = document.querySelector(".floating");
  pointer("pointermove", 0.5);
  seen.readout = card.textContent;
  key("ArrowRight");
  await frame();
  seen.decision = card.textContent;
  const whole = ticks();
  pointer("pointerdown", 0.4);
  pointer("pointermove", 0.5);
  pointer("pointerup", 0.5);
  await frame();
  seen.zoomed = ticks() !== whole;
  key("0");
  await frame();
  seen.back = ticks() === whole;
  const search = document.querySelector("input[type=search]");
  search.value = "wake";
  search.dispatchEvent(new Event("input"));
  seen.found = document.querySelectorAll(".decision-list > li").length;
  const result = document.createElement("pre");
  result.id = "seen";
  result.textContent = JSON.stringify(seen);
  document.body.append(result);
})();
</script>
"""


def opened(text: str, folder: Path) -> tuple[str, list[str]]:
    """The page's elements after its scripts ran, and what the browser's console said."""
    assert BROWSER is not None
    path = folder / "page.html"
    path.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
         "--disable-extensions", "--window-size=1400,1000", f"--user-data-dir={folder / 'profile'}",
         "--enable-logging=stderr", "--virtual-time-budget=3000", "--dump-dom", path.as_uri()],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def count(dom: str, pattern: str) -> int:
    return len(re.findall(pattern, dom))


@needs_browser
def test_the_page_draws_every_panel_and_answers_pointer_and_keys(tmp_path: Path) -> None:
    results = samples.realistic()
    hostile = replace(results[0], policy=HOSTILE)
    text = page([hostile, *results[1:]])
    text = text.replace("</title>", f"</title>{FRAMES}").replace("</body>", f"{READER}</body>")

    dom, console = opened(text, tmp_path)

    assert console == []
    assert count(dom, r'<figure class="panel">') == 5
    assert count(dom, r'class="minute (ok|missed|empty)"') == 180
    assert 20 < count(dom, r'class="mark (up|down)') <= len(hostile.decisions)
    assert count(dom, r'class="point (main|leading|beaten|bound)" transform') == 10
    assert count(dom, r'<tr( class="main")?><th scope="row">') == 10 + 5
    assert count(dom, r'class="part ') == 3 * 4
    seen = re.search(r'<pre id="seen">(.*?)</pre>', dom)
    assert seen is not None
    assert '"readout":"1:2' in seen[1]
    assert "requests are waiting or running" in seen[1]
    assert '"zoomed":true,"back":true,"found":1}' in seen[1]


@needs_browser
def test_an_empty_result_is_drawn_without_an_error(tmp_path: Path) -> None:
    dom, console = opened(page([samples.empty()]), tmp_path)

    assert console == []
    assert "Nothing was replayed" in dom
    assert "No replica was ever asked for" in dom
