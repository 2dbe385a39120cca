"""One replay of the matrix in this process, with the law of the `serve_app` that it has imported."""

import time

from benchmarks.law_cells.figures import CellRun, reversals
from benchmarks.law_cells.plan import SEED, CellJob
from replay.defaults import KNOBS
from replay.fleet.fleet import Fleet
from replay.production import Production
from replay.reports import Reporting
from replay.result import Result
from replay.run import run


class Noted(Production):
    """The production policy, whose targets are noted."""

    def __init__(self, reporting: Reporting) -> None:
        super().__init__(KNOBS, reporting=reporting)
        self.targets: list[tuple[float, int]] = []

    def step(self, fleet: Fleet) -> int:
        """One turn of Ray's controller."""
        target = super().step(fleet)
        if not self.targets or target != self.targets[-1][1]:
            self.targets.append((fleet.now, target))
        return target


def replayed(job: CellJob) -> CellRun:
    """Replay `job`.

    Raises:
        RuntimeError: where a decision of our policy raised; the policy itself would go on.
        TraceError: for a line of the window that is no request.
    """
    began = time.perf_counter()
    asked = job.cell.scenario(job.traffic.open(), SEED)
    if job.law is None:
        return _figures(run(asked, job.policy), [], began)
    controller = Noted(job.cell.reporting)
    result = asked.run(controller, warm=asked.warm())
    if result.policy_errors:
        why = [record.get("reason", "") for record in result.decisions if record.get("kind") == "error"]
        raise RuntimeError(f"{result.policy_errors} decisions raised: {', '.join(why[:1])}")
    return _figures(result, controller.targets, began)


def _figures(result: Result, targets: list[tuple[float, int]], began: float) -> CellRun:
    return CellRun(
        name=result.policy,
        gpu_seconds=round(result.gpu_seconds.total, 1),
        attainment=round(result.attainment, 6),
        ttft_ok=round(result.ttft_ok, 6),
        infeasible=round(result.infeasible, 6),
        rejected=result.rejected,
        starts=result.starts,
        changes=result.changes,
        reversals=reversals(targets),
        wall_s=round(time.perf_counter() - began, 2),  # of a search, all its replays
    )
