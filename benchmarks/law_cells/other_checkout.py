"""`python -P -m benchmarks.law_cells.other_checkout CHECKOUT`: a job on stdin, its figures on stdout.

The replay, the benchmark and the traces are this checkout's; `serve_app` is the other's. What they need of it
may have another form there: the last line of stderr then says what, and where it was needed.
"""

import json
import os
import pickle
import sys
import traceback
from dataclasses import asdict
from pathlib import Path

from benchmarks import REPOSITORY


def main(checkout: Path) -> int:
    """0, or 1 where the replay could not be made."""
    try:
        import serve_app  # noqa: PLC0415 whose it is decides everything

        here = Path(serve_app.__path__[0]).resolve()
        if here != checkout.resolve() / "serve_app":
            raise ImportError(f"serve_app is that of {here.parent}")
        # Read from stdin and not before: it imports the replay, and with it `serve_app`.
        from benchmarks.law_cells.replayed import replayed  # noqa: PLC0415

        run = replayed(pickle.load(sys.stdin.buffer))
    except Exception as error:
        what = f"{type(error).__name__}: {error} ({_needed_at(error)})"
        print(f"the law of {checkout} does not fit this replay: {what}", file=sys.stderr)
        return 1
    print(json.dumps(asdict(run)))
    return 0


def _needed_at(error: Exception) -> str:
    """The innermost line of this checkout's laboratory on the way to an error."""
    frames = traceback.extract_tb(error.__traceback__)
    rooms = [str(REPOSITORY / room) + os.sep for room in ("replay", "benchmarks", "loadtests")]
    ours = [frame for frame in frames if frame.filename.startswith(tuple(rooms))]
    return f"{Path(ours[-1].filename).relative_to(REPOSITORY)}:{ours[-1].lineno}" if ours else "unknown"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
