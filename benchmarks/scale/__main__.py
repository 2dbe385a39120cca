"""`python -m benchmarks.scale`: the cost of Tideserve's own parts by replicas, models and ingress replicas.

Engines are fakes that speak the data plane. The code of the ingress, the policy and the documents is real. Times are
CPU time of this process, so a busy machine changes them little. docs/scale.md has the figures.
"""

import argparse
import multiprocessing
import sys

import uvloop

from benchmarks.common.markdown import table
from benchmarks.scale.fake_store import FakeStore
from benchmarks.scale.ingress_side import IngressSide
from benchmarks.scale.policy_side import measure

CELLS = "10x1x1,100x1x1,1000x1x1,100x20x4,1000x20x4,1000x100x4,1000x100x16"


def run(cell: tuple[int, int, int]) -> dict[str, float]:
    """Measure one size: replicas, models, ingress replicas."""
    store = FakeStore()
    store.install()
    figures = measure(store, *cell)

    async def ingress() -> dict[str, float]:
        return await IngressSide(store, *cell).measure()

    return {**uvloop.run(ingress()), **figures}


def _spawned(cell: tuple[int, int, int]) -> dict[str, float]:
    """Run in a process of its own, whose memory and CPU are of this size alone."""
    there, here = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_send, args=(here, cell))
    process.start()
    here.close()
    figures: dict[str, float] = there.recv()
    process.join()
    return figures


def _send(to: "multiprocessing.connection.Connection", cell: tuple[int, int, int]) -> None:
    to.send(run(cell))


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument(
        "--cells", default=CELLS, help="sizes as REPLICASxMODELSxINGRESSES, separated by commas"
    )
    cells = [tuple(map(int, each.split("x"))) for each in parser.parse_args().cells.split(",")]
    columns = []
    for replicas, models, ingresses in cells:
        print(f"{replicas} replicas, {models} models, {ingresses} ingress replicas", file=sys.stderr)
        columns.append(_spawned((replicas, models, ingresses)))
    rows = [[name, *(f"{column[name]:.3g}" for column in columns)] for name in columns[0]]
    print(
        table(["replicas × models × ingress replicas", *(" × ".join(map(str, cell)) for cell in cells)], rows)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
