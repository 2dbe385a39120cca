"""`python -m benchmarks.scale`: the cost of Tideserve's own parts by replicas, models and ingress replicas.

Engines are fakes that speak the data plane. The code of the ingress, of the policy and of the documents is
real. Times are CPU time, so a busy machine changes them less than clock time. docs/scale.md has the figures.
"""

import argparse
import multiprocessing
import sys
from multiprocessing.connection import Connection

import uvloop

from benchmarks.common.markdown import table
from benchmarks.scale import ingress_side, policy_side
from benchmarks.scale.fake_store import FakeStore

CELLS = "10x1x1,100x20x4,1000x1x1,1000x20x4,1000x100x16"


def _measure(to: Connection, replicas: int, models: int, ingresses: int) -> None:
    store = FakeStore(policy_side.APP)
    store.install()
    ids = [f"r{number:04d}" for number in range(replicas)]
    fleet = {f"Engine-model-{number}": ids[number::models] for number in range(models)}
    policy = policy_side.measure(store, fleet, ingresses)
    to.send({**uvloop.run(ingress_side.measure(store, fleet, ingresses)), **policy})


def main() -> int:
    """Print the table. Each size runs in a process of its own."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument(
        "--cells", default=CELLS, help="sizes as REPLICASxMODELSxINGRESSES, with commas between"
    )
    cells = [tuple(map(int, each.split("x"))) for each in parser.parse_args().cells.split(",")]
    columns = []
    for cell in cells:
        there, here = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=_measure, args=(here, *cell))
        process.start()
        here.close()
        columns.append(there.recv())
        process.join()
    rows = [[name, *(f"{column[name]:.3g}" for column in columns)] for name in columns[0]]
    print(table(["replicas, models, ingress replicas", *(", ".join(map(str, cell)) for cell in cells)], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
