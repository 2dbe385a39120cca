"""Merge the expositions of several metrics agents into one, under Tideserve's own names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

_PREFIX = "ray_"
_OURS = re.compile(r"^ray_(llm_[a-zA-Z0-9_]*)")
_LOST_NODE = "# lost node"
_SUFFIXES = ("_bucket", "_sum", "_count")


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """The answer of one node's metrics agent, or why there is none."""

    url: str
    text: str | None
    """Its exposition; None if it did not answer."""
    answered_s: float | None
    """Seconds since its last answer; None before the first."""
    why: str = ""
    """Why there is no answer."""


def cluster_exposition(answers: Sequence[NodeAnswer], nodes_age_s: float | None) -> str:
    """Return the `llm_*` series of all nodes that have answered, and comments on the others.

    Args:
        answers: One for each node of the list.
        nodes_age_s: Seconds since Ray's GCS was asked for that list; None if it has never answered.
    """
    if nodes_age_s is None:
        return "# the nodes are not known: Ray's GCS has not answered yet\n"
    texts = [answer.text if answer.text is not None else _lost_node(answer) for answer in answers]
    return merge_expositions([*texts, _own_series(answers, nodes_age_s)])


def _lost_node(answer: NodeAnswer) -> str:
    """Return a comment. The node's old series are left out: Prometheus would take them for new."""
    last = (
        "never answered before"
        if answer.answered_s is None
        else f"last answered {answer.answered_s:.1f} s ago"
    )
    return f"{_LOST_NODE} {answer.url}: {answer.why}; {last}\n"


def _own_series(answers: Sequence[NodeAnswer], nodes_age_s: float) -> str:
    lines = [
        "# HELP ray_llm_metrics_node_up Whether the metrics agent of a node has answered this scrape.",
        "# TYPE ray_llm_metrics_node_up gauge",
        *(
            f'ray_llm_metrics_node_up{{node="{urlsplit(answer.url).netloc}"}} {int(answer.text is not None)}'
            for answer in answers
        ),
        "# HELP ray_llm_metrics_nodes_age_seconds Age of the list of nodes that were asked.",
        "# TYPE ray_llm_metrics_nodes_age_seconds gauge",
        f"ray_llm_metrics_nodes_age_seconds {nodes_age_s:.3f}",
    ]
    return "\n".join(lines) + "\n"


def merge_expositions(texts: Iterable[str]) -> str:
    """Return the `llm_*` series of every text, each family described once, its samples together.

    Ray prefixes every series with `ray_`; here they have the names of the documentation.
    """
    described: dict[str, dict[str, str]] = {}
    samples: dict[str, list[str]] = {}
    lines: list[str] = []
    for text in texts:
        histograms: set[str] = set()
        for line in text.splitlines():
            if line.startswith("#"):
                _, keyword, name, *rest = [*line.split(" ", 3), "", ""]
                if line.startswith(_LOST_NODE):
                    lines.append(line)
                elif keyword in ("HELP", "TYPE") and _OURS.match(name):
                    family = name.removeprefix(_PREFIX)
                    described.setdefault(family, {})[keyword] = rest[0]
                    if keyword == "TYPE" and rest[0] == "histogram":
                        histograms.add(family)
                continue
            match = _OURS.match(line)
            if match is None:
                continue
            samples.setdefault(_family(match[1], histograms), []).append(line.removeprefix(_PREFIX))
    for family in sorted(samples):
        texts_of = described.get(family, {})
        lines.append(f"# HELP {family} {texts_of.get('HELP', '')}")
        lines.append(f"# TYPE {family} {texts_of.get('TYPE', 'untyped')}")
        lines += samples[family]
    return "\n".join(lines) + "\n"


def _family(name: str, histograms: set[str]) -> str:
    for suffix in _SUFFIXES:
        if name.endswith(suffix) and name.removesuffix(suffix) in histograms:
            return name.removesuffix(suffix)
    return name
