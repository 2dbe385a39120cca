"""Reports of replays: a JSON document, tables for a terminal, an HTML page, and pictures."""

from replay.report.document import document
from replay.report.html import write_html
from replay.report.png import write_png
from replay.report.terminal import print_comparison, print_result

__all__ = ["document", "print_comparison", "print_result", "write_html", "write_png"]
