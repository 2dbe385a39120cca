"""The request logs of a fleet, replayed as one."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.traces.files import PLAIN, json_lines, log_line, requests, written
from traces import TraceError, open_trace
from traces.scale import Source, merge
from traces.trace import Chunk

START = 1_763_712_000.0


def fleet(folder: Path) -> None:
    """Three logs of two replicas, written in the order in which requests ended."""
    for name, seconds, zipped in (
        ("requests.a.0001.jsonl", (5, 0, 7), False),
        ("requests.a.0002.jsonl.gz", (12, 11), True),
        ("requests.b.0001.jsonl", (3, 9, 8), False),
    ):
        rows = [log_line(START + second, 10 + second) for second in seconds]
        written(folder, json_lines(rows), name, zipped=zipped)
    (folder / "requests.c.0001.jsonl").touch()  # a replica that has not had a request
    written(folder, "something else", "serve.log")


@pytest.mark.parametrize("way", ["folder", "pattern", "list"])
def test_the_logs_of_a_fleet_are_merged_by_arrival(tmp_path: Path, way: str) -> None:
    fleet(tmp_path)
    paths = {
        "folder": tmp_path,
        "pattern": str(tmp_path / "requests.*"),
        "list": sorted(tmp_path.glob("requests.*"), reverse=True),
    }

    trace = open_trace(paths[way])

    assert requests(trace).arrivals == [0.0, 3.0, 5.0, 7.0, 8.0, 9.0, 11.0, 12.0]
    assert requests(trace).inputs == [10, 13, 15, 17, 18, 19, 21, 22]
    assert (
        trace.name
        == {"folder": tmp_path.name, "pattern": "requests.*", "list": "requests.c.0001.jsonl and 3 more"}[way]
    )


def test_only_request_logs_are_read_together(tmp_path: Path) -> None:
    log = written(tmp_path, json_lines([log_line(START)]), "a.jsonl")
    plain = written(tmp_path, PLAIN + "1,2,3\n", "b.csv")

    with pytest.raises(
        TraceError, match=r"b\.csv: only request logs \(tideserve\) are read together, and this"
    ):
        open_trace([log, plain])


def test_logs_of_several_models_ask_for_one(tmp_path: Path) -> None:
    written(tmp_path, json_lines([log_line(START)]), "a.jsonl")
    second = written(tmp_path, json_lines([log_line(START + 1, model="other")]), "b.jsonl")

    with pytest.raises(TraceError) as caught:
        requests(open_trace(tmp_path))

    assert str(caught.value) == (
        f"{second}, line 1: model = 'other', and lines before have tide; name one to replay"
    )
    assert len(requests(open_trace(tmp_path, model="other")).inputs) == 1


def test_a_request_of_over_an_hour_needs_a_sorted_file(tmp_path: Path) -> None:
    rows = [log_line(START + 4000, 1), log_line(START, 2)]
    log = written(tmp_path, json_lines(rows), "a.jsonl")

    with pytest.raises(TraceError, match=r"line 2: arrived 4000 s before .* sort the file by arrival"):
        requests(open_trace(log))

    by_text = "".join(sorted(log.read_text().splitlines(keepends=True)))
    assert requests(open_trace(written(tmp_path, by_text))).arrivals == [0.0, 4000.0]


def chunk(*arrivals: float) -> Chunk:
    return Chunk(np.array(arrivals), np.ones(len(arrivals), np.int64), np.ones(len(arrivals), np.int64))


def test_merging_equals_sorting() -> None:
    rng = np.random.default_rng(1)
    sources, everything = [], []
    for i in range(9):
        times = np.sort(rng.uniform(30 * i, 30 * i + 100, 500))
        everything += times.tolist()
        sources.append(Source(float(times[0]) - 5, iter([chunk(*run) for run in np.array_split(times, 12)])))

    out = [time for merged_chunk in merge(sources) for time in merged_chunk.arrival_s.tolist()]

    assert out == sorted(everything)


def test_a_log_is_not_opened_before_its_time() -> None:
    begun = []

    def source(name: str, *runs: Chunk) -> Iterator[Chunk]:
        begun.append(name)
        yield from runs

    out = merge(
        [
            Source(0.0, source("first", chunk(1, 2), chunk(3, 4))),
            Source(1000.0, source("second", chunk(1000, 1001))),
        ]
    )

    assert next(out).arrival_s.tolist() == [1.0, 2.0]
    assert begun == ["first"]
    assert [part.arrival_s.tolist() for part in out] == [[3.0, 4.0], [1000.0, 1001.0]]
    assert begun == ["first", "second"]
