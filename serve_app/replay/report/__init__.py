"""Reports of replays: a JSON document, tables for a terminal, an HTML page, and pictures."""

from serve_app.replay.report.document import document
from serve_app.replay.report.html import write_html
from serve_app.replay.report.png import write_png
from serve_app.replay.report.terminal import print_comparison, print_result

__all__ = ["document", "print_comparison", "print_result", "write_html", "write_png"]
