"""Make the repository's `benchmarks` package importable: it is not part of the installed package."""

import sys
from pathlib import Path

_REPOSITORY = str(Path(__file__).resolve().parents[2])
if _REPOSITORY not in sys.path:
    sys.path.insert(0, _REPOSITORY)
