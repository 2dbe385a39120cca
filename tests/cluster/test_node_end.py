"""The announcement that a node ends."""

import pytest

from serve_app.cluster.node_end import announce_end, draining_nodes, main


class FakeGcs:
    """The part of Ray's GCS client that announces drains."""

    def __init__(self, refusal: str = "") -> None:
        self.refusal = refusal
        self.deadlines_ms: dict[str, int] = {}

    def drain_node(self, node: str, reason: int, why: str, deadline_ms: int) -> tuple[bool, str]:
        if not self.refusal:
            self.deadlines_ms[node] = deadline_ms
        return not self.refusal, self.refusal

    def get_draining_nodes(self, timeout: float) -> dict[str, int]:
        return self.deadlines_ms


def test_announced_ends_are_read() -> None:
    gcs = FakeGcs()
    announce_end(gcs, ["a", "b"], 30.0, "spot")
    gcs.deadlines_ms["without a deadline"] = 0

    assert draining_nodes(gcs) == {node: gcs.deadlines_ms[node] / 1000.0 for node in "ab"}


def test_a_refused_drain_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="Ray does not drain node a: busy"):
        announce_end(FakeGcs("busy"), ["a"], 30.0, "spot")


@pytest.mark.parametrize("seconds", ["-1", "nan", "inf", "1e9", "soon"])
def test_impossible_times_are_refused(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([f"--in={seconds}"])

    assert "--in" in capsys.readouterr().err
