"""Bars of throughput and time to first token, where matplotlib is installed."""

from __future__ import annotations

import importlib
from pathlib import Path

from benchmarks.serving_overhead.report import METRICS, Report


def draw(report: Report, folder: Path) -> str:
    """Write `results.svg` and `results.png` to `folder`; returns what was done, or why nothing was."""
    try:
        importlib.import_module("matplotlib").use("Agg")
    except ImportError:
        return "no chart: matplotlib is not installed"
    pyplot = importlib.import_module("matplotlib.pyplot")

    shown = [
        metric
        for metric in METRICS
        if metric.key in ("tokens_per_s", "ttft_p50_ms", "server_cpu_ms_per_token")
    ]
    figure, axes = pyplot.subplots(1, len(shown), figsize=(4.5 * len(shown), 3.6), layout="constrained")
    width = 0.8 / len(report.titles)
    for axis, metric in zip(axes, shown, strict=True):
        for index, (server, title) in enumerate(report.titles.items()):
            spreads = [report.cell(server, c, metric).value for c in report.concurrencies]
            heights = [s.median for s in spreads]
            errors = [[s.median - s.low for s in spreads], [s.high - s.median for s in spreads]]
            places = [at + (index - (len(report.titles) - 1) / 2) * width for at in range(len(spreads))]
            axis.bar(places, heights, width, yerr=errors, label=title, capsize=2)
        axis.set_xticks(range(len(report.concurrencies)), [str(c) for c in report.concurrencies])
        axis.set_xlabel("concurrent requests")
        axis.set_title(metric.title)
    axes[0].legend(fontsize="small")
    for suffix in ("svg", "png"):
        figure.savefig(folder / f"results.{suffix}", dpi=150)
    pyplot.close(figure)
    return f"chart: {folder / 'results.svg'} and .png"
