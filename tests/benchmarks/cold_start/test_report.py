import json
from pathlib import Path

import pytest

from benchmarks.cold_start.measure import Measured
from benchmarks.cold_start.phases import ENGINE_CORE, FRONT_END, REQUEST, Phase
from benchmarks.cold_start.picture import timeline
from benchmarks.cold_start.report import Report, to_json, to_markdown
from loadtests.drawing.pictures import write_pictures


def phases(scale: float) -> tuple[Phase, ...]:
    return (
        Phase(REQUEST, "held until the decision", 0.0, scale),
        Phase(FRONT_END, "imports", scale, 2 * scale),
        Phase(ENGINE_CORE, "model", 2.0 * scale, 2.5 * scale),
        Phase(ENGINE_CORE, "weights", 2.5 * scale, 3 * scale),
        Phase(ENGINE_CORE, "model", 3.0 * scale, 4 * scale),
    )


def start(
    system: str, number: int, seconds: float, traced: bool = False, other_cores: float = 0.0
) -> Measured:
    cpu_s = {"engine core": seconds / 2, "Ray": 0.5}
    found = (phases(seconds),) if traced else ()
    pss = {"engine core": 1 << 30}
    up_s = 20.0 if system == "tideserve" else None
    return Measured(system, 1, number, traced, seconds, seconds, up_s, cpu_s, pss, other_cores, found)


@pytest.fixture
def report() -> Report:
    starts = [
        *(start("tideserve", at, seconds) for at, seconds in enumerate((3.0, 4.0, 8.0), start=1)),
        *(start("vllm", at, seconds) for at, seconds in enumerate((12.0, 20.0, 24.0), start=1)),
        start("tideserve", 1, 5.0, traced=True),
        start("vllm", 1, 30.0, traced=True, other_cores=0.7),
    ]
    return Report(("tideserve", "vllm"), {"rounds": "3"}, {"cores": "2"}, {"python": "3.11"}, starts)


def test_totals_are_medians_of_starts_without_tracing_with_the_ratio_round_by_round(report: Report) -> None:
    text = to_markdown(report)

    assert "4.00 (3.00-8.00)" in text
    assert "20.00 (12.00-24.00, ratio 4.00)" in text


def test_phases_that_come_in_parts_are_added_up(report: Report) -> None:
    assert report.phases("tideserve", 1) == {
        (REQUEST, "held until the decision"): 5.0,
        (FRONT_END, "imports"): 5.0,
        (ENGINE_CORE, "model"): 7.5,
        (ENGINE_CORE, "weights"): 2.5,
    }


def test_a_phase_that_a_replica_lacks_counts_as_nothing() -> None:
    one = Measured("tideserve", 2, 1, True, 1.0, 1.0, None, {}, {}, 0.0, (phases(1.0), phases(1.0)[:1]))

    assert Report(("tideserve",), {}, {}, {}, [one]).phases("tideserve", 2)[FRONT_END, "imports"] == 0.5


def test_a_machine_that_others_use_is_told(report: Report) -> None:
    doubts = [each for each in to_markdown(report).splitlines() if "Doubtful" in each]

    assert doubts == [
        "- **Doubtful:** vllm serve, 1 at once, round 1: others on this machine used 0.70 cores"
    ]


def test_the_document_has_every_start_and_the_medians(report: Report) -> None:
    document = json.loads(to_json(report))

    assert len(document["starts"]) == 8
    ours, vllm = document["summary"]
    assert (ours["system"], ours["first_token_s"], vllm["first_token_s"]) == ("tideserve", 4.0, 20.0)
    assert ours["phases_s"][0] == {"row": REQUEST, "phase": "held until the decision", "seconds": 5.0}


def test_only_totals_or_only_phases_make_a_report(report: Report) -> None:
    for traced in (False, True):
        starts = [one for one in report.starts if one.traced is traced]
        text = to_markdown(Report(report.systems, {}, {}, {}, starts))
        assert ("until all had answered" in text) is traced


def test_a_timeline_is_drawn(report: Report, tmp_path: Path) -> None:
    (path,) = write_pictures(tmp_path, {"timeline": lambda: timeline(report, 1)})

    assert path.stat().st_size > 10_000
