"""The pictures of a proof. Imports matplotlib, which takes half a second."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from loadtests.drawing.palette import LIGHT
from loadtests.drawing.pictures import blank, frame

_SIZE = (9.0, 3.4)
_COLOURS = ("ready", "held", "ok", "wanted", "starting", "draining", "idle", "other")


def pictures(document: Mapping[str, Any]) -> dict[str, Figure]:
    """Return a picture for each stage that is done and better looked at than read, by the stage's name."""
    done = {one["stage"]: one["figures"] for one in document["stages"] if one["state"] == "done"}
    drawn = {"step-time": _step_time, "capacity": _capacity, "cold-start": _cold_start, "overhead": _overhead}
    return {name: draw(done[name]) for name, draw in drawn.items() if name in done}


def _step_time(found: Mapping[str, Any]) -> Figure:
    """The law over what was measured, one point for the mean of a second's steps."""
    figure = blank(_SIZE)
    panel = figure.subplots()
    samples = np.array(found["samples"])
    law = found["law"]["coefficients"]
    names = ("base_s", "per_sequence_s", "per_kv_token_s", "per_prefill_token_s")
    loads = np.column_stack([np.ones(len(samples)), samples[:, 1:]])
    expected = loads @ np.array([law[name] for name in names])
    prefill = samples[:, 3] > 0
    for rows, name, label in ((~prefill, "ready", "steps that decode"), (prefill, "held", "with prefill")):
        panel.loglog(
            samples[rows, 0] * 1e3,
            expected[rows] * 1e3,
            "o",
            markersize=4,
            alpha=0.7,
            color=LIGHT[name],
            label=label,
        )
    ends = [samples[:, 0].min() * 900, samples[:, 0].max() * 1100]
    panel.plot(ends, ends, color=LIGHT["soft"], linewidth=0.8)
    panel.set_xlabel("measured, ms", color=LIGHT["soft"], fontsize=8.5)
    panel.set_ylabel("by the law, ms", color=LIGHT["soft"], fontsize=8.5)
    frame(panel, "The time of a step")
    return figure


def _capacity(found: Mapping[str, Any]) -> Figure:
    """Latencies over their targets against the rate; 1 is the target."""
    figure = blank(_SIZE)
    panel = figure.subplots()
    rates = found["rates"]
    for name, target in (("ttft", "ttft_target_s"), ("itl", "itl_target_s")):
        points = [(one["rps"], one[f"{name}_s"]) for one in rates if one[f"{name}_s"] is not None]
        if points:
            at, seconds = np.array(points).T
            panel.plot(
                at, seconds / found["targets"][target], "o-", color=LIGHT[name], label=f"{name.upper()} P95"
            )
    panel.axhline(1.0, color=LIGHT["target"], linewidth=0.8)
    knee = found["knee"]
    if knee and knee["rps"]:
        panel.axvline(knee["rps"], color=LIGHT["ok"], linewidth=1.2, label=f"held: {knee['rps']:.3g}/s")
    panel.set_ylim(0, 3)
    panel.set_xlabel("requests/s", color=LIGHT["soft"], fontsize=8.5)
    frame(panel, "P95 over its target")
    return figure


def _cold_start(found: Mapping[str, Any]) -> Figure:
    """A bar for each start, with its phases where they are known."""
    starts = [
        (f"{system}, {way}, {which}", one)
        for system in ("tideserve", "vllm serve")
        for way, both in found[system].items()
        for which, one in both.items()
    ]
    figure = blank((9.0, 0.8 + 0.45 * len(starts)))
    panel = figure.subplots()
    names = list(dict.fromkeys(name for _, one in starts for name in one.get("phases_s", {})))
    colours = dict(zip(names, _COLOURS, strict=False))
    shown: set[str] = set()
    for row, (_, one) in enumerate(starts):
        left = 0.0
        for name, seconds in one.get("phases_s", {}).items():
            label = None if name in shown else name.replace("_", " ")
            shown.add(name)
            panel.barh(
                row, seconds, left=left, color=LIGHT[colours.get(name, "other")], label=label, height=0.6
            )
            left += seconds
        rest = max(one["first_token_s"] - left, 0.0)
        label = None if "rest" in shown else "the rest"
        shown.add("rest")
        panel.barh(row, rest, left=left, color=LIGHT["line"], label=label, height=0.6)
        panel.text(one["first_token_s"], row, f" {one['first_token_s']:.1f} s", va="center", fontsize=8.5)
    panel.set_yticks(range(len(starts)), [name for name, _ in starts])
    panel.invert_yaxis()
    panel.set_xlim(0, 1.12 * max(one["first_token_s"] for _, one in starts))
    panel.set_xlabel("seconds to the first token", color=LIGHT["soft"], fontsize=8.5)
    frame(panel, "")
    return figure


def _overhead(found: Mapping[str, Any]) -> Figure:
    """Throughput by concurrency, ours beside vLLM's."""
    figure = blank(_SIZE)
    panel = figure.subplots()
    levels = sorted({one["concurrency"] for one in found["measurements"]})
    servers = found["servers"]
    width = 0.8 / len(servers)
    for index, server in enumerate(servers):
        heights = [
            one["tokens_per_s"]
            for level in levels
            for one in found["measurements"]
            if one["concurrency"] == level and one["server"] == server
        ]
        places = np.arange(len(levels)) + (index - (len(servers) - 1) / 2) * width
        panel.bar(places, heights, width * 0.94, color=LIGHT[_COLOURS[index]], label=server)
    panel.set_xticks(range(len(levels)), [str(level) for level in levels])
    panel.set_xlabel("concurrent requests", color=LIGHT["soft"], fontsize=8.5)
    frame(panel, "Tokens per second")
    return figure
