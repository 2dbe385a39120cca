from serve_app.cluster.head_pod_shutdown import wait_for_workers


class Cluster:
    """Says how many workers drain, second after second, the last for ever."""

    def __init__(self, *counts: int) -> None:
        self.at = 100.0
        self._counts = counts

    def now(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds

    def draining(self) -> int:
        return self._counts[min(int(self.at - 100), len(self._counts) - 1)]

    def wait(self, notice_s: float = 5.0, timeout_s: float = 40.0) -> tuple[float, str]:
        """How long it took, and what it said."""
        said = wait_for_workers(self.draining, notice_s, timeout_s, self.now, self.sleep)
        return self.at - 100.0, said


def test_a_head_that_stops_alone_waits_for_the_notice() -> None:
    assert Cluster(0).wait() == (5.0, "no worker drains, 5 s after the head was told to stop")


def test_the_head_waits_until_the_last_worker_has_drained() -> None:
    seconds, said = Cluster(*[0] * 3, *[2] * 10, *[1] * 10, 0).wait()

    assert (seconds, said) == (23.0, "all workers had drained after 23 s")


def test_the_wait_ends_after_its_timeout() -> None:
    seconds, said = Cluster(0, 3).wait()

    assert seconds == 40.0
    assert said == "workers still draining after 40 s: 3; they end by themselves"


def test_a_worker_that_reports_within_the_notice_is_waited_for() -> None:
    assert Cluster(*[0] * 4, 1, 1, 0).wait()[0] == 6.0
    assert Cluster(*[0] * 6, 1, 1, 0).wait()[0] == 5.0
