"""What each format comes to."""

from pathlib import Path

import numpy as np
import pytest

from tests.traces.files import AZURE, PLAIN, json_lines, log_line, requests, written
from traces import FORMATS, open_trace
from traces.trace import CHUNK_REQUESTS


def test_a_plain_trace_keeps_its_own_times(tmp_path: Path) -> None:
    trace = open_trace(written(tmp_path, PLAIN + "2400.5,100,20\n2401,7,1\n"))

    read = requests(trace)
    assert (read.arrivals, read.inputs, read.outputs) == ([2400.5, 2401.0], [100, 7], [20, 1])
    assert (trace.name, trace.block_tokens) == ("trace", 0)


@pytest.mark.parametrize(
    "content",
    [
        "output_tokens,user,arrival_s,input_tokens\n5,ann,1.5,10\n6,bob,2,11\n",
        "Arrival_S, Input_Tokens ,OUTPUT_TOKENS\r\n1.5,10,5\r\n2,11,6\r\n",
        'arrival_s,input_tokens,output_tokens\n"1.5","10","5"\n\n 2 , 11.0 , 6\n\n',
        '"arrival_s","input_tokens","output_tokens","note"\n1.5,10,5,"a, b"\n2,11,6,\n',
        "\ufeffarrival_s,input_tokens,output_tokens\n1.5,10,5\n2,11,6",
        "\n\narrival_s,input_tokens,output_tokens\n1.5,10,5\n2,1.1e1,6,what,else\n",
    ],
    ids=["other order and columns", "spaces, case and CRLF", "quotes and blanks", "quoted", "BOM", "ragged"],
)
def test_columns_are_found_by_name_however_they_are_written(tmp_path: Path, content: str) -> None:
    read = requests(open_trace(written(tmp_path, content)))

    assert (read.arrivals, read.inputs, read.outputs) == ([1.5, 2.0], [10, 11], [5, 6])


def test_an_answer_without_a_token_is_one_token_of_prefill(tmp_path: Path) -> None:
    assert requests(open_trace(written(tmp_path, PLAIN + "0,10,0\n"))).outputs == [1]


def test_azure_traces_start_with_their_first_request(tmp_path: Path) -> None:
    content = AZURE + "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n"

    read = requests(open_trace(written(tmp_path, content)))

    assert (read.arrivals, read.inputs, read.outputs) == ([0.0, 0.052], [4808, 3180], [10, 8])


@pytest.mark.parametrize(
    "times",
    [
        ("2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:01+00:00", "2024-05-10 00:00:02.5+00:00"),
        ("2024-05-10T00:00:00.009930Z", "2024-05-10T00:00:01Z", "2024-05-10T00:00:02.5Z"),
        ("2024-05-10 02:00:00.009930+02:00", "2024-05-10 00:00:01+00:00", "2024-05-09 19:00:02.5-05:00"),
    ],
    ids=["UTC", "Z", "offsets"],
)
def test_azure_times_may_have_an_offset(tmp_path: Path, times: tuple[str, ...]) -> None:
    content = AZURE + "".join(f"{time},10,5\n" for time in times)

    assert requests(open_trace(written(tmp_path, content))).arrivals == [0.0, 0.99007, 2.49007]


def test_azure_times_may_cross_a_day(tmp_path: Path) -> None:
    content = AZURE + "2023-12-31 23:59:59.5,1,1\n2024-01-01 00:00:00.25,1,1\n"

    assert requests(open_trace(written(tmp_path, content))).arrivals == [0.0, 0.75]


def test_mooncake_traces_carry_their_prefix_blocks(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 27000, "input_length": 1025, "output_length": 6, "hash_ids": [0, 1, 2]},
        {"timestamp": 27500.5, "input_length": 10, "output_length": 0, "hash_ids": []},
        {"timestamp": 28000, "input_length": 600, "output_length": 3, "hash_ids": [0, 9]},
    ]

    trace = open_trace(written(tmp_path, json_lines(rows)))

    read = requests(trace)
    assert trace.block_tokens == 512
    assert (read.arrivals, read.inputs, read.outputs) == ([27.0, 27.5005, 28.0], [1025, 10, 600], [6, 1, 3])
    assert read.blocks == [[0, 1, 2], [], [0, 9]]


def test_our_log_starts_with_the_first_request_to_arrive(tmp_path: Path) -> None:
    rows = [log_line(1_763_712_010.25), log_line(1_763_712_010.75, 11), log_line(1_763_712_000.0, 12)]

    read = requests(open_trace(written(tmp_path, json_lines(rows))))

    assert (read.arrivals, read.inputs) == ([0.0, 10.25, 10.75], [12, 10, 11])


def test_requests_of_several_sequences_are_replayed_side_by_side(tmp_path: Path) -> None:
    content = json_lines([log_line(1e9, 100, 8), log_line(1e9 + 1, 10, 2, sequences=3)])

    read = requests(open_trace(written(tmp_path, content)))

    assert read.arrivals == [0.0, 1.0, 1.0, 1.0]
    assert (read.inputs, read.outputs) == ([100, 4, 3, 3], [8, 1, 1, 1])


def test_even_shares_leave_the_rest_to_the_first_sequences(tmp_path: Path) -> None:
    content = json_lines([log_line(1e9, 7, 3, sequences=4), log_line(1e9 + 1, 1, 0, sequences=2)])

    read = requests(open_trace(written(tmp_path, content)))

    assert read.inputs == [2, 2, 2, 1, 1, 1]
    assert read.outputs == [1, 1, 1, 1, 1, 1]


def test_failed_requests_are_not_replayed_and_abandoned_ones_are(tmp_path: Path) -> None:
    content = json_lines(
        [
            log_line(1e9, 1, outcome="failed"),
            log_line(1e9 + 2, 2, 0, outcome="abandoned"),
            log_line(1e9 + 3, 3, outcome="completed"),
        ]
    )

    read = requests(open_trace(written(tmp_path, content)))

    assert (read.arrivals, read.inputs, read.outputs) == ([0.0, 1.0], [2, 3], [1, 5])


def test_one_model_of_a_log_can_be_chosen(tmp_path: Path) -> None:
    content = json_lines([log_line(1e9, 1), log_line(1e9 + 2, 2, model="other"), log_line(1e9 + 3, 3)])

    assert requests(open_trace(written(tmp_path, content), model="tide")).inputs == [1, 3]
    assert requests(open_trace(written(tmp_path, content), model="other")).inputs == [2]


@pytest.mark.parametrize("name", ["trace.csv", "trace.csv.gz", "trace"])
@pytest.mark.parametrize("zipped", [True, False])
def test_gzip_is_recognised_by_content(tmp_path: Path, name: str, zipped: bool) -> None:
    path = written(tmp_path, PLAIN + "1,2,3\n", name, zipped=zipped)

    assert requests(open_trace(path)).inputs == [2]
    assert requests(open_trace(str(path), format="plain")).inputs == [2]


def test_a_trace_can_be_read_again_and_by_two_at_once(tmp_path: Path) -> None:
    trace = open_trace(written(tmp_path, PLAIN + "1,2,3\n4,5,6\n"))

    assert requests(trace) == requests(trace)
    ((first, second),) = zip(trace.chunks(), trace.chunks(), strict=True)
    assert first.input_tokens.tolist() == second.input_tokens.tolist() == [2, 5]


def test_many_requests_come_in_chunks_with_progress(tmp_path: Path) -> None:
    count = 3 * CHUNK_REQUESTS + 5
    times = np.arange(count) / 100
    lines = "".join(f"{time:.2f},{i + 1},2,{'x' * 50}\n" for i, time in enumerate(times))
    trace = open_trace(written(tmp_path, PLAIN + lines))

    seen = [trace.progress() for _ in trace.chunks()]

    assert len(seen) >= 4
    assert seen == sorted(seen)
    assert 0.0 < seen[0] < seen[-1] <= 1.0
    assert requests(trace).inputs == list(range(1, count + 1))


def test_lines_that_stand_a_little_late_are_put_in_order(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    times = np.arange(40_000) / 20
    late = times[np.argsort(times + rng.uniform(0, 59, len(times)))]
    lines = "".join(f"{time:.2f},1,2\n" for time in late)

    read = requests(open_trace(written(tmp_path, PLAIN + lines)))

    assert np.allclose(read.arrivals, times)


def test_every_format_has_a_name() -> None:
    assert FORMATS == ("azure", "mooncake", "plain", "tideserve")
