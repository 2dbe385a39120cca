"""`python -m tools.dashboards [folder]` writes the dashboards, by default into the chart."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.dashboards.files import write

if __name__ == "__main__":
    write(*map(Path, sys.argv[1:2]))
