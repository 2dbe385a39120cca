"""A rehearsal of the GPU proof on this machine's CPU: interrupted once, and continued to its end.

It takes ten minutes, so `make test-long` runs it.
"""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks import REPOSITORY
from benchmarks.gpu_proof.page import PAGE, REHEARSAL
from benchmarks.gpu_proof.proof import titles
from benchmarks.gpu_proof.publish import publish
from benchmarks.gpu_proof.store import DOCUMENT, RefusedError, read_document

STAGES = tuple(titles())
CUT_IN = "slo"
KEPT = ["model", "smoke", "eager-start", "lost-replica", "cold-start", "step-time", "capacity"]
CANNOT = {"tensor-parallel": "it takes two GPUs, and there is none"}

pytestmark = [pytest.mark.timeout(1200), pytest.mark.long]


@dataclass(frozen=True)
class Rehearsal:
    status: int
    lines: list[str]
    folder: Path
    document: dict[str, Any]

    def stages(self) -> dict[str, str]:
        return {one["stage"]: one["state"] for one in self.document["stages"]}


def rehearse(folder: Path, interrupt_at: str = "") -> Rehearsal:
    """Run it, and send SIGTERM once it has said `interrupt_at`."""
    command = [sys.executable, "-u", "-m", "benchmarks.gpu_proof", "--device", "cpu", "--minutes", "2"]
    command += ["--out", str(folder / "proof"), "--windows", str(folder), "--stages", ",".join(STAGES)]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0
    ) as running:
        assert running.stdout is not None
        lines = []
        for line in running.stdout:
            lines.append(line)
            if interrupt_at and interrupt_at in line:
                os.kill(running.pid, signal.SIGTERM)
                interrupt_at = ""
    document = read_document(folder / "proof" / DOCUMENT)
    return Rehearsal(running.returncode, lines, folder / "proof", document)


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    folder = tmp_path_factory.mktemp("rehearsal")
    requests = "".join(f"{at / 2},100,20\n" for at in range(120))
    (folder / "steady.csv").write_text(f"arrival_s,input_tokens,output_tokens\n{requests}")
    return rehearse(folder, interrupt_at=f"{CUT_IN}: ")


@pytest.fixture(scope="module")
def whole(cut: Rehearsal) -> Rehearsal:
    return rehearse(cut.folder.parent)


def test_an_interrupted_proof_has_the_stages_that_ended_before(cut: Rehearsal) -> None:
    assert cut.status == 130, "".join(cut.lines)
    assert cut.stages() == dict.fromkeys(KEPT, "done")
    assert cut.document["not measured"] == [name for name in titles() if name not in cut.stages()]


def test_the_next_run_measures_each_other_stage_or_says_why_not(cut: Rehearsal, whole: Rehearsal) -> None:
    assert whole.status == 0, "".join(whole.lines)
    assert whole.document["stages"][: len(cut.stages())] == cut.document["stages"]
    assert whole.document["not measured"] == [name for name in titles() if name not in STAGES]
    assert whole.stages() == dict.fromkeys(STAGES, "done") | dict.fromkeys(CANNOT, "cannot")
    assert {one["stage"]: one["why"] for one in whole.document["stages"] if one["why"]} == CANNOT


def test_every_figure_of_it_is_the_cpu_s(whole: Rehearsal, tmp_path: Path) -> None:
    page = (whole.folder / PAGE).read_text()
    assert REHEARSAL in page
    assert page.count("*CPU, NO GPU") == len(STAGES)
    with pytest.raises(RefusedError, match="nothing of it is taken for a GPU's"):
        publish(whole.document, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_its_figures_are_numbers(whole: Rehearsal) -> None:
    figures = {one["stage"]: one["figures"] for one in whole.document["stages"]}
    assert figures["step-time"]["fit"]["samples"] >= 8
    assert json.dumps(whole.document, allow_nan=False)


def test_the_longer_stages_measure_what_they_are_about(whole: Rehearsal) -> None:
    figures = {one["stage"]: one["figures"] for one in whole.document["stages"]}
    assert all(rate["ttft_s"] for rate in figures["capacity"]["rates"])
    assert [row["policy"] for row in figures["replay"]["rows"]] == ["ours", "ray:5"]
    assert [figures["prefix-cache"][load]["errors"] for load in ("shared", "nothing_shared")] == [0, 0]
    loads = [*figures["slo"]["tried"], *figures["prefill-groups"]["rows"]]
    assert [load["errors"] for load in loads] == [0] * len(loads)
    assert {row["how"] for row in figures["prefill-groups"]["rows"]} == {
        "one by one", "4 together", "2 replicas, prefill_groups on", "2 replicas, prefill_groups off",
    }  # fmt: skip
    assert figures["quantization"]["int8_per_channel_weight_only"]["fit"]["samples"] >= 8
