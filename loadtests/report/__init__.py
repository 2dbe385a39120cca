"""Reports of load tests: a JSON document that can be read back, an HTML page, and pictures."""

from loadtests.report.document import read_run, run_document, write_json
from loadtests.report.html import write_html

__all__ = ["read_run", "run_document", "write_html", "write_json"]
