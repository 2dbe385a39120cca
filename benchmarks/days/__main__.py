"""`python -m benchmarks.days`: see README.md beside this file."""

import argparse
import gzip
import sys
from pathlib import Path

from traces import TraceError, open_trace
from traces.days import DaysTrace

PEAK_RPS = 25.0
"""Of requests as in Azure's conversations, with which ten A100s are needed at the peak."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.days",
        description="Composes days of traffic of a recorded trace, as arrival_s,input_tokens,output_tokens.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--trace", type=Path, required=True, help="the recording")
    parser.add_argument(
        "--out", type=Path, required=True, help="the file to write; compressed if it ends in .gz"
    )
    parser.add_argument("--days", type=int, default=1, help="days, from a Monday on")
    parser.add_argument("--peak-rps", type=float, default=PEAK_RPS, help="mean rate at the peak of a weekday")
    parser.add_argument("--seed", type=int, default=0, help="seed of the days' levels and of what is picked")
    return parser


def main(argv: list[str]) -> int:
    """0 when the trace is written, 2 for a wrong command line or recording."""
    parser = _parser()
    given = parser.parse_args(argv)
    try:
        trace = DaysTrace(open_trace(given.trace), given.days, given.peak_rps, given.seed)
    except TraceError as error:
        parser.error(str(error))
    requests = write(trace, given.out)
    print(f"{given.out}: {requests:,} requests, {trace.name}")
    return 0


def write(trace: DaysTrace, out: Path) -> int:
    """Write `trace` in the format `plain`, and return its number of requests."""
    requests = 0
    # Without a name and a time in the header, equal traces are equal files.
    with out.open("wb") as raw, gzip.GzipFile("", "wb", 1, raw, 0.0) if out.suffix == ".gz" else raw as file:
        file.write(b"arrival_s,input_tokens,output_tokens\n")
        for chunk in trace.chunks():
            rows = zip(
                chunk.arrival_s.tolist(),
                chunk.input_tokens.tolist(),
                chunk.output_tokens.tolist(),
                strict=True,
            )
            file.write("".join([f"{at:.6f},{read},{made}\n" for at, read, made in rows]).encode())
            requests += len(chunk)
    return requests


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
