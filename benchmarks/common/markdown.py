"""Tables in Markdown whose columns also line up as plain text."""

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = True) -> str:
    """`rows` under `header`. With `numbers`, all columns but the first are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    right = [numbers and index > 0 for index in range(len(widths))]

    def line(cells: Sequence[str]) -> str:
        padded = zip(cells, widths, right, strict=True)
        return f"| {' | '.join(c.rjust(w) if to_right else c.ljust(w) for c, w, to_right in padded)} |"

    rule = [
        "-" * (width - 1) + (":" if to_right else "-") for width, to_right in zip(widths, right, strict=True)
    ]
    return "\n".join([line(header), line(rule), *(line(row) for row in rows)])
