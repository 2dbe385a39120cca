"""`python -m benchmarks.gpu_proof`: see README.md beside this file."""

import sys
from typing import Any

from benchmarks.common.interruption import end_on_signals
from benchmarks.common.progress import say
from benchmarks.common.supervise import TERM_S
from benchmarks.gpu_proof.bench import Bench
from benchmarks.gpu_proof.hardware import look
from benchmarks.gpu_proof.options import Options, parse
from benchmarks.gpu_proof.proof import SMOKE, STAGES, prove, write_page
from benchmarks.gpu_proof.store import RefusedError, Store
from serve_app.cli.ray_processes import stop_descendants

_INTERRUPTED = 130


def main(argv: list[str]) -> int:
    """0 when no stage failed, 1 when one did, 2 when the proof cannot begin, 130 when interrupted."""
    options = parse(argv, tuple(stage.name for stage in STAGES), SMOKE)
    end_on_signals()
    try:
        bench = begin(options, look(options.device))
    except RefusedError as error:
        for reason in error.reasons:
            print(f"gpu-proof: {reason}", file=sys.stderr)
        return 2
    try:
        well = prove(bench)
    except KeyboardInterrupt:
        say(f"interrupted; {options.out} has what was measured, and the next run goes on from there")
        return _INTERRUPTED
    finally:
        stop_descendants(TERM_S)
        say(f"{write_page(bench)}: written")
    return 0 if well else 1


def begin(options: Options, machine: dict[str, Any]) -> Bench:
    """Open the folder of the results. Raises RefusedError."""
    if options.device == "cpu":
        say("a rehearsal on the CPU: none of its figures is a GPU's")
    gpus = [gpu["name"] for gpu in machine["gpus"]]
    identity = {
        "device": options.device,
        "gpu": f"{len(gpus)} x {gpus[0]}" if gpus else "none",
        "model": options.random_weights or options.model or "embedded",
        "weights": "written" if options.checkpoint else "made up" if options.random_weights else "its own",
        "processor": machine["processor"],
        "versions": ", ".join(f"{k} {v}" for k, v in machine["versions"].items() if k != "commit"),
    }
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        store = Store(options.out, identity)
        store.write_machine(machine)
    except OSError as error:
        raise RefusedError(f"{options.out} cannot be written: {error.strerror}; give another --out") from None
    return Bench(options, store, machine)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
