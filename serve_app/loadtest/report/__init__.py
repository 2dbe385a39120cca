"""Reports of load tests: a JSON document that can be read back, an HTML page, and pictures."""

from serve_app.loadtest.report.document import run_document, write_json
from serve_app.loadtest.report.html import write_html
from serve_app.loadtest.report.png import write_png
from serve_app.loadtest.report.reading import read_run

__all__ = ["read_run", "run_document", "write_html", "write_json", "write_png"]
