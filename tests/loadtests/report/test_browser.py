"""The page in a real browser: that it draws without an error, fits, and answers a reader's hand."""

import re
from dataclasses import replace

import numpy as np
import pytest

from loadtests.report.html import page
from serve_app.ui.palette import DARK, LIGHT
from tests.loadtests import samples
from tests.loadtests.drawing.browser import needs_browser
from tests.loadtests.report.frames import Frame, Looks, channels, looked_at, pixels_of, share_of
from tests.loadtests.report.runs import reported, two_models

WIDE, NARROW = 1400, 390
SHOT_HEIGHT = 2600
# Hovers, pins a decision, walks by keys, zooms, searches, and points at a request.
READER = """
async function reader() {
  const seen = {};
  const chart = document.querySelector(".chart");
  const card = chart.querySelector(".floating");
  const frame = () => new Promise((done) => setTimeout(done, 50));
  const key = (name) => chart.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true }));
  const pointer = (on, kind, share, down) => {
    const { left, top, width } = on.getBoundingClientRect();
    const at = { clientX: left + share * width, clientY: top + down, button: 0, pointerId: 1, bubbles: true };
    on.dispatchEvent(new PointerEvent(kind, at));
  };
  chart.setPointerCapture = () => {};
  const ticks = () => [...chart.querySelectorAll(".axis text")].map((text) => text.textContent).join(" ");
  pointer(chart, "pointermove", 0.5, 60);
  seen.readout = card.textContent;
  chart.querySelector(".mark").dispatchEvent(new PointerEvent("pointerenter"));
  seen.merged = card.textContent;
  key("ArrowRight");
  await frame();
  seen.chosen = document.querySelector(".decision-list .chosen").textContent;
  const whole = ticks();
  pointer(chart, "pointerdown", 0.4, 60);
  pointer(chart, "pointermove", 0.5, 60);
  pointer(chart, "pointerup", 0.5, 60);
  await frame();
  seen.zoomed = ticks() !== whole;
  key("0");
  await frame();
  seen.back = ticks() === whole;
  const listed = () => document.querySelectorAll(".decision-list > li").length;
  seen.changes = listed();
  const direction = document.querySelector("select[aria-label=Direction]");
  direction.value = "";
  direction.dispatchEvent(new Event("change"));
  seen.listed = listed();
  const search = document.querySelector("input[type=search]");
  search.value = "idle";
  search.dispatchEvent(new Event("input"));
  seen.found = listed();
  const points = document.querySelector("#requests .chart-plain");
  pointer(points, "pointermove", 50 / points.clientWidth, 60);
  seen.request = points.querySelector(".floating").textContent;
  return seen;
}
"""


@pytest.fixture(scope="module")
def burst(tmp_path_factory: pytest.TempPathFactory) -> Looks:
    kept = reported(samples.cold_burst())
    frames = [
        Frame("light-wide", page(*kept, "light"), WIDE, READER),
        Frame("dark-wide", page(*kept, "dark"), WIDE),
        Frame("light-narrow", page(*kept, "light"), NARROW),
    ]
    return looked_at(frames, tmp_path_factory.mktemp("burst"), SHOT_HEIGHT, shot=True)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Looks:
    nothing = replace(samples.empty(), records=(), samples=(), decisions=(), duration_s=0.0)
    slos = {"ttft_ms": {"p50": 60_000, "p95": 90_000, "p99": 120_000}, "itl_ms": {"p50": 0.1, "p99": 40}}
    kept = samples.steady()
    bounded = replace(kept, scenario={**kept.scenario, "slos": slos | {"warm_ttft_ms": {"p50": 80_000}}})
    frames = [
        Frame("bounds", page(*reported(bounded)), NARROW),
        Frame("empty", page(*reported(samples.empty()), "dark"), WIDE),
        Frame("nothing", page(*reported(nothing)), NARROW),
        Frame("hostile", page(*reported(samples.hostile()), "light"), NARROW),
        Frame("long", page(*reported(samples.long()), "light"), NARROW),
        Frame("models", page(*reported(two_models()), "dark"), NARROW),
        Frame("models-wide", page(*reported(two_models()), "dark"), WIDE),
    ]
    return looked_at(frames, tmp_path_factory.mktemp("others"), 900)


@needs_browser
def test_no_page_says_anything_on_the_console_or_is_left_unfinished(burst: Looks, others: Looks) -> None:
    assert burst.window.console == []
    assert others.window.console == []
    assert set(burst.seen) == {"light-wide", "dark-wide", "light-narrow"}
    assert len(others.seen) == 7
    assert [seen["failures"] for seen in (burst.seen | others.seen).values()] == [[]] * 10


@needs_browser
def test_no_two_labels_meet_and_nothing_runs_out_of_its_page(burst: Looks, others: Looks) -> None:
    looks = burst.seen | others.seen

    assert {name: seen["overlaps"] for name, seen in looks.items() if seen["overlaps"]} == {}
    assert {name: seen["overflow"] for name, seen in looks.items() if seen["overflow"] > 0} == {}
    assert {name: seen["wide"] for name, seen in looks.items() if seen["wide"]} == {}
    assert {name: seen["outside"] for name, seen in looks.items() if seen["outside"]} == {}
    assert {seen["width"] for seen in looks.values()} == {WIDE, NARROW}


@needs_browser
def test_every_panel_is_drawn(burst: Looks, others: Looks) -> None:
    dom = burst.seen["light-wide"]["dom"]
    models = others.seen["models-wide"]["dom"]

    assert count(dom, '<figure class="panel">') == 6
    assert count(models, '<figure class="panel">') == 7
    assert count(dom, 'class="line ttft p99"') == 1
    areas = ("ready", "starting", "pending", "draining", "held", "running")
    assert [count(dom, f'class="area {name}"') for name in areas] == [1] * 6
    kinds = ("warm", "cold-answered", "left", "rejected", "broken")
    assert [count(dom, f'class="request {kind}"') for kind in kinds] == [2] * 5
    assert count(dom, 'class="part ') == 3
    assert burst.seen["light-wide"]["stamp"].startswith("PASS13 of 13")
    assert others.seen["empty"]["stamp"].startswith("FAIL")
    assert others.seen["hostile"]["stamp"].startswith("INVALID")
    assert "never" in others.seen["empty"]["dom"]
    assert "No request was sent." in others.seen["nothing"]["dom"]


@needs_browser
def test_bounds_far_off_are_named_at_the_edge_and_stretch_no_axis(others: Looks) -> None:
    dom = others.seen["bounds"]["dom"]

    # On the timeline and among the requests.
    assert [count(dom, f">{name}↑") for name in ("P50", "P95", "P99")] == [2, 2, 2]
    assert [count(dom, f">{name}↓") for name in ("P50", "P99")] == [1, 0]
    assert [count(dom, f'class="bound {name}"') for name in ("p50", "p95", "p99")] == [0, 0, 1]
    assert count(dom, " →") == 4
    assert count(dom, " ←") == 1


@needs_browser
def test_close_decisions_share_a_mark(burst: Looks) -> None:
    dom = burst.seen["light-wide"]["dom"]

    assert re.findall(r'class="mark-name">([^<]*)<', dom)[:2] == ["1\N{EN DASH}2", "3"]
    assert count(dom, 'class="decided-at"') == 5
    read = burst.seen["light-wide"]["read"]
    assert "0 → 1" in read["merged"]
    assert "1 → 3" in read["merged"]
    assert "9 requests are waiting" in read["chosen"]


@needs_browser
def test_the_page_answers_pointer_and_keys(burst: Looks) -> None:
    read = burst.seen["light-wide"]["read"]

    assert "TTFT P99" in read["readout"]
    assert "ITL P50" in read["readout"]
    assert (read["zoomed"], read["back"]) == (True, True)
    decisions = samples.cold_burst().decisions
    assert read["changes"] == sum(one["old_target"] != one["new_target"] for one in decisions)
    assert read["changes"] < read["listed"] == len(decisions)
    assert read["found"] == 2
    assert "request " in read["request"]
    assert "TTFT" in read["request"]


@needs_browser
def test_names_from_outside_never_become_elements(others: Looks) -> None:
    dom = others.seen["hostile"]["dom"]

    assert "<img" not in dom
    assert "<script" not in dom
    assert "&lt;script&gt;alert" in dom


@needs_browser
@pytest.mark.parametrize(("name", "colours"), [("light", LIGHT), ("dark", DARK)])
def test_each_theme_has_its_colours_and_its_picture_is_not_blank(
    burst: Looks, name: str, colours: dict[str, str]
) -> None:
    left = {"light": 0, "dark": WIDE}[name]
    pixels = pixels_of(burst.window.picture)[::2, left : left + WIDE : 2]
    seen = burst.seen[f"{name}-wide"]

    assert [rgb(seen[key]) for key in ("ground", "panel", "ink", "soft")] == [
        channels(colours[key]) for key in ("ground", "panel", "ink", "soft")
    ]
    assert share_of(pixels, colours["panel"]) > 0.4
    assert 0.002 < share_of(pixels, colours["ok"]) < 0.2
    assert share_of(pixels, colours["ink"]) > 0.001
    assert len(np.unique(pixels[::4, ::2].reshape(-1, 3), axis=0)) > 200


def count(dom: str, text: str) -> int:
    return dom.count(text)


def rgb(style: str) -> list[int]:
    return [int(value) for value in re.findall(r"\d+", style)[:3]]
