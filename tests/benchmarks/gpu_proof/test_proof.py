import subprocess
from typing import Any

import httpx
import pytest

from benchmarks.gpu_proof import __main__ as gpu_proof
from benchmarks.gpu_proof.options import parse
from benchmarks.gpu_proof.outcome import CannotError, NeedError, RefusedError
from benchmarks.gpu_proof.proof import SMOKE, STAGES, Stage, prove
from replay.capacity.server import MeasurementError
from tests.benchmarks.gpu_proof.proofs import bench, done


class Counted:
    """A stage's measurement that counts how often it is made."""

    def __init__(self, result: dict[str, Any] | BaseException) -> None:
        self.times = 0
        self.result = result

    def __call__(self, _) -> dict[str, Any]:
        self.times += 1
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


def test_every_stage_needs_only_stages_before_it() -> None:
    before: set[str] = set()
    for stage in STAGES:
        assert set(stage.needs) <= before, stage.name
        before.add(stage.name)
    assert set(SMOKE) <= before


def test_stages_run_in_their_order_and_each_is_kept_at_once(tmp_path) -> None:
    seen = []

    def second(running) -> dict[str, Any]:
        seen.append(running.figures("first"))
        return {}

    stages = (Stage("first", "First", Counted({"rps": 2.0})), Stage("second", "Second", second, ("first",)))
    assert prove(bench(tmp_path, stages), stages)
    assert seen == [{"rps": 2.0}]


def test_the_next_run_measures_only_what_is_missing_or_failed(tmp_path) -> None:
    good, cannot = Counted({}), Counted(CannotError("it takes two GPUs"))
    bad = Counted(MeasurementError("nothing answers"))
    stages = (Stage("good", "", good), Stage("cannot", "", cannot), Stage("bad", "", bad))

    assert not prove(bench(tmp_path, stages), stages)
    bad.result = {"rps": 1.0}
    lines: list[str] = []
    assert prove(bench(tmp_path, stages, lines=lines), stages)
    assert (good.times, cannot.times, bad.times) == (1, 1, 2)
    assert lines[0].startswith("good: measured on ")


def test_what_is_cut_off_is_measured_again_and_the_rest_is_kept(tmp_path) -> None:
    first, cut = Counted({}), Counted(KeyboardInterrupt())
    stages = (Stage("first", "", first), Stage("cut", "", cut))
    with pytest.raises(KeyboardInterrupt):
        prove(bench(tmp_path, stages), stages)

    cut.result = {}
    again = bench(tmp_path, stages)
    assert again.store.outcome("cut") is None
    assert prove(again, stages)
    assert (first.times, cut.times) == (1, 2)


def test_a_stage_whose_need_failed_says_so_and_is_not_tried(tmp_path) -> None:
    after = Counted({})
    stages = (
        Stage("capacity", "", Counted(MeasurementError("no replica"))),
        Stage("slo", "", after, ("capacity",)),
    )
    running = bench(tmp_path, stages)
    assert not prove(running, stages)

    outcome = running.store.outcome("slo")
    assert outcome is not None
    assert (outcome.state, after.times) == ("failed", 0)
    assert outcome.why == "it needs the stage capacity, which ended with: no replica"


def test_a_stage_that_waited_for_one_that_failed_is_measured_once_that_is_done(tmp_path) -> None:
    first, after = Counted(MeasurementError("no replica")), Counted({})
    stages = (Stage("capacity", "", first), Stage("slo", "", after, ("capacity",)))
    prove(bench(tmp_path, stages), stages)
    first.result = {}
    prove(bench(tmp_path, stages), stages)

    assert after.times == 1


def test_again_measures_a_stage_once_more(tmp_path) -> None:
    first, second = Counted({}), Counted({})
    stages = (Stage("first", "", first), Stage("second", "", second))
    prove(bench(tmp_path, stages), stages)
    prove(bench(tmp_path, stages, "--again", "second"), stages)

    assert (first.times, second.times) == (1, 2)


def test_only_the_stages_that_were_asked_for_are_measured(tmp_path) -> None:
    first, second = Counted({}), Counted({})
    stages = (Stage("first", "", first), Stage("second", "", second))
    running = bench(tmp_path, stages, "--stages", "smoke")
    prove(running, stages)

    assert (first.times, second.times) == (1, 0)


@pytest.mark.parametrize(
    "error", [httpx.ReadError("the server died"), subprocess.TimeoutExpired("benchmark", 1800.0)]
)
def test_a_server_that_dies_and_a_benchmark_that_hangs_fail_their_stage_alone(tmp_path, error) -> None:
    after = Counted({})
    stages = (Stage("first", "", Counted(error)), Stage("second", "", after))
    running = bench(tmp_path, stages)

    assert not prove(running, stages)
    assert (running.store.outcome("first").why, after.times) == (str(error), 1)


def test_an_error_of_our_own_code_is_not_taken_for_a_failed_measurement(tmp_path) -> None:
    stages = (Stage("first", "", Counted(KeyError("rps"))),)
    with pytest.raises(KeyError):
        prove(bench(tmp_path, stages), stages)


def test_the_figures_of_a_stage_that_is_not_done_are_not_there(tmp_path) -> None:
    running = bench(tmp_path, STAGES)
    with pytest.raises(NeedError, match="it needs the stage slo, which has not been measured"):
        running.figures("slo")
    running.store.keep(done("slo", rps=1.0))
    assert running.figures("slo") == {"rps": 1.0}


def test_a_folder_that_cannot_be_written_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(gpu_proof, "look", lambda _: {"gpus": [], "processor": "any", "versions": {}})
    (tmp_path / "file").touch()
    options = parse(["--device", "cpu", "--out", str(tmp_path / "file" / "out")], SMOKE, SMOKE)
    with pytest.raises(RefusedError, match="file/out cannot be written: Not a directory; give another --out"):
        gpu_proof._begin(options)
