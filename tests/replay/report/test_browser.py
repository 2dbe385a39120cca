"""The page in a real browser: that it draws, without an error, and answers a reader's hand."""

import json
import re
from dataclasses import replace
from pathlib import Path

from replay.report.document import page
from tests.loadtests.drawing.browser import FRAMES, needs_browser, opened
from tests.replay.report import samples

HOSTILE = "</script><script>document.body.remove()</script>"

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
  search.value = "SEARCHED";
  search.dispatchEvent(new Event("input"));
  seen.found = document.querySelectorAll(".decision-list > li").length;
  const result = document.createElement("pre");
  result.id = "seen";
  result.textContent = JSON.stringify(seen);
  document.body.append(result);
})();
</script>
"""


@needs_browser
def test_the_page_draws_every_panel_and_answers_pointer_and_keys(tmp_path: Path) -> None:
    results = samples.realistic()
    hostile = replace(results[0], policy=HOSTILE)
    text = page([hostile, *results[1:]])
    reader = READER.replace('"SEARCHED"', json.dumps(hostile.decisions[0]["reason"]))
    text = text.replace("</title>", f"</title>{FRAMES}").replace("</body>", f"{reader}</body>")

    seen_page = opened(text, tmp_path)
    count, dom = seen_page.count, seen_page.dom

    assert seen_page.console == []
    assert count(r'<figure class="panel">') == 5
    assert count(r'class="minute (ok|missed|empty)"') == len(hostile.windows.requests)
    assert 3 < count(r'class="mark (up|down)') <= len(hostile.decisions)
    policies = len({*hostile.peers, *(result.policy for result in results)})
    assert count(r'class="point (main|leading|beaten|bound)" transform') == policies
    assert count(r'<tr( class="main")?><th scope="row">') == policies + 5 + 4
    assert count(r'class="part ') == 3 * 4
    seen = re.search(r'<pre id="seen">(.*?)</pre>', dom)
    assert seen is not None
    assert '"readout":"0:' in seen[1]
    assert '"zoomed":true,"back":true,"found":' in seen[1]
    assert '"found":0' not in seen[1]


@needs_browser
def test_an_empty_result_is_drawn_without_an_error(tmp_path: Path) -> None:
    seen = opened(page([samples.empty()]), tmp_path)

    assert seen.console == []
    assert "Nothing was replayed" in seen.dom
    assert "No replica was ever asked for" in seen.dom
