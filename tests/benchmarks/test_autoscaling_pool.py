import pytest

from benchmarks.autoscaling.plan import Job
from benchmarks.autoscaling.pool import Failure, run_all
from replay.defaults import OURS
from tests.benchmarks.made_up_runs import failing, run, window


@pytest.mark.parametrize("workers", [1, 2])
def test_one_replay_that_fails_does_not_end_the_others(workers: int) -> None:
    jobs = [Job(window(), policy, 0) for policy in ("wva", "ray", OURS)]

    found = dict(run_all(jobs, failing, workers))

    assert found[jobs[0]] == Failure("RuntimeError: no luck")
    assert [found[job] for job in jobs[1:]] == [run(job) for job in jobs[1:]]
