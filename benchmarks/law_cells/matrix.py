"""The matrix as text: a row for each cell and its traffic, a column for each law."""

from collections.abc import Sequence

from benchmarks.common.markdown import table
from benchmarks.law_cells.results import Row, attained
from replay.defaults import ORACLE, OURS, STATIC
from serve_app.cli import formats

MEANING = (
    "Each field is GPU-seconds over the oracle's @ attainment. In brackets, behind laws of ours: reversals "
    "of the target within five minutes, and cold starts; behind the static fleet, its replicas. A cost in "
    "brackets is thousands of GPU-seconds, where the oracle attains less than 99 % itself and is no measure."
)


def matrix(rows: Sequence[Row], columns: Sequence[str], laws: Sequence[str]) -> str:
    """A Markdown table. `laws` are the columns of laws of ours, whose reversals are counted."""
    shown = [column for column in columns if column != ORACLE]
    header = ["cell", "traffic", "kind", *(f"**{name}**" if name == OURS else f"`{name}`" for name in shown)]
    body = [
        [
            row.cell.name,
            row.traffic.name,
            "smooth" if row.traffic.smooth else "bursty",
            *(_field(row, column, counted=column in laws) for column in shown),
        ]
        for row in rows
    ]
    return table(header, body)


def _field(row: Row, column: str, *, counted: bool) -> str:
    run = row.runs.get(column)
    if run is None:
        return "-"
    ratio = row.over_oracle(column)
    cost = f"({run.gpu_seconds / 1000:.1f}k)" if ratio is None else f"{ratio:.2f}"
    text = f"{cost} @ {formats.percent(run.attainment)}"
    if column == STATIC:
        text = f"{text} ({run.name.removeprefix('static:')})"
    elif counted:
        text = f"{text} ({run.reversals}, {run.starts})"
    if column == OURS and row.traffic.smooth and row.attainable and not attained(run):
        return f"**{text}**"
    return text
