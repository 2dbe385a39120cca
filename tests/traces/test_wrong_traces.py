"""What a trace that cannot be replayed says of itself: file, line, key, value and bound."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from tests.traces.files import AZURE, PLAIN, json_lines, log_line, requests, written
from traces import TraceError, open_trace


def refusal(path: Any, **options: Any) -> str:
    with pytest.raises(TraceError) as caught:
        requests(open_trace(path, **options))
    return str(caught.value)


GOOD = "0,10,5\n"
MOONCAKE = {"timestamp": 0, "input_length": 10, "output_length": 1, "hash_ids": []}
AZURE_GOOD = "2023-11-16 18:17:03.9799600,1,1\n"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("x,10,5", "arrival_s = 'x': not a number"),
        ("1_0,10,5", "arrival_s = '1_0': not a number"),
        (",10,5", "arrival_s = '': not a number"),
        ("-1,10,5", "arrival_s = '-1': must be from 0 to 315360000"),
        ("nan,10,5", "arrival_s = 'nan': must be from 0 to 315360000"),
        ("inf,10,5", "arrival_s = 'inf': must be from 0 to 315360000"),
        ("1763712000,10,5", "arrival_s = '1763712000': must be from 0 to 315360000"),
        ("1,0,5", "input_tokens = '0': must be from 1 to 10000000"),
        ("1,1.5,5", "input_tokens = '1.5': must be a whole number"),
        ("1,99999999999,5", "input_tokens = '99999999999': must be from 1 to 10000000"),
        ("1,1e400,5", "input_tokens = '1e400': must be from 1 to 10000000"),
        ("1,10,-5", "output_tokens = '-5': must be from 0 to 10000000"),
        ("1,10,nan", "output_tokens = 'nan': must be from 0 to 10000000"),
        ("1,10", "2 columns, and output_tokens is column 3: '1,10'"),
        ('1,10,"5', None),
        ("1,10,5\0", "not text: it has a zero byte"),
    ],
)
def test_a_wrong_line_is_named_with_its_value_and_bound(tmp_path: Path, line: str, says: str | None) -> None:
    path = written(tmp_path, PLAIN + GOOD + "\n" + line + "\n" + "2,1,1\n")

    if says is None:  # an open quote ends with its line
        requests(open_trace(path))
    else:
        assert refusal(path) == f"{path}, line 4: {says}"


def test_a_line_far_into_the_file_has_its_right_number(tmp_path: Path) -> None:
    lines = [f"{i / 100},1,1,{'x' * 40}\n" for i in range(60_000)]
    lines[50_000] = "oops\n"

    assert ", line 50002: 1 columns" in refusal(written(tmp_path, PLAIN + "".join(lines)))
    assert ", line 50002: 1 columns" in refusal(written(tmp_path, PLAIN + "".join(lines), zipped=True))


def test_the_first_wrong_line_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, PLAIN + GOOD + "1,1,x\n1,0,1\n-1,1,1\n")

    assert refusal(path) == f"{path}, line 3: output_tokens = 'x': not a number"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("yesterday,1,1", "TIMESTAMP = 'yesterday': not a date and time"),
        (",1,1", "TIMESTAMP = '': not a date and time"),
        ("NaT,1,1", "TIMESTAMP = 'NaT': not a date and time"),
        ("2023-11-16\0 18:17:05,1,1", "not text: it has a zero byte"),
        ("2023-11-16 18:17:05.,1,1", "TIMESTAMP = '2023-11-16 18:17:05.': not a date and time"),
        ("2023-11-16 18:17:05+00:000,1,1", "TIMESTAMP = '2023-11-16 18:17:05+00:000': not a date and time"),
        ("9999-01-01 00:00:00,1,1", "TIMESTAMP = '9999-01-01 00:00:00': must be from 1970 to 2100"),
        ("2023-11-16 18:17:05,0,1", "ContextTokens = '0': must be from 1 to 10000000"),
        ("2023-11-16 18:17:05,1,x", "GeneratedTokens = 'x': not a number"),
    ],
)
def test_a_wrong_line_of_azures_is_named(tmp_path: Path, line: str, says: str) -> None:
    path = written(tmp_path, AZURE + AZURE_GOOD + line)

    assert refusal(path) == f"{path}, line 3: {says}"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"timestamp": "0"}, None),
        ({"timestamp": None}, "timestamp = None: not a number"),
        ({"timestamp": True}, "timestamp = True: not a number"),
        ({"timestamp": -1}, "timestamp = -1: must be from 0 to 315360000000"),
        ({"input_length": 0}, "input_length = 0: must be from 1 to 10000000"),
        ({"input_length": 10**30}, f"input_length = {10**30}: must be from 1 to 10000000"),
        ({"output_length": 1.5}, "output_length = 1.5: must be a whole number"),
        ({"hash_ids": 3}, "hash_ids = 3: must be a list"),
        ({"hash_ids": [-1]}, "hash_ids: -1: must be a whole number from 0 to 9223372036854775807"),
        ({"hash_ids": ["a"]}, "hash_ids: 'a': must be a whole number from 0 to 9223372036854775807"),
        ({"hash_ids": [1, 2]}, "hash_ids: 2 blocks of 512 tokens, and a prompt of 10 has at most 1"),
    ],
)
def test_a_wrong_object_is_named(tmp_path: Path, change: dict[str, Any], says: str | None) -> None:
    path = written(tmp_path, json_lines([MOONCAKE, MOONCAKE | change]))

    if says is None:  # a number in quotes is a number
        requests(open_trace(path))
    else:
        assert refusal(path) == f"{path}, line 2: {says}"


def test_an_object_without_a_key_lists_its_keys(tmp_path: Path) -> None:
    path = written(tmp_path, json_lines([MOONCAKE, {"timestamp": 1, "output_length": 2}]))

    assert refusal(path) == f"{path}, line 2: input_length: missing; the line has 'timestamp, output_length'"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("[1, 2]", "must be an object, and is '[1, 2]'"),
        ("nonsense", "not JSON: "),
        ('{"timestamp": 0, "input_length": 10,\n"output_length": 1}', "not JSON: "),
        ("[" * 50_000, "not JSON: "),
        (
            '{"timestamp": 0, "input_length": 1, "output_length": 2, "input_length": 3}',
            "input_length: given twice",
        ),
        ('{"timestamp": 0, "input_length": 1, "output_length": 2, "a": {"b": 1, "b": 1}}', "b: given twice"),
    ],
)
def test_a_line_that_is_no_object_is_named(tmp_path: Path, line: str, says: str) -> None:
    path = written(tmp_path, json_lines([MOONCAKE]) + line)

    assert refusal(path).startswith(f"{path}, line 2: {says}")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"arrived_at": -1.0}, "arrived_at = -1.0: must be from 0 to 4102444800"),
        ({"input_tokens": 0}, "input_tokens = 0: must be from 1 to 10000000"),
        ({"sequences": 0}, "sequences = 0: must be from 1 to 10000"),
        ({"model": 3}, "model = 3: must be a string"),
        ({"model": "other"}, "model = 'other', and lines before have tide; name one to replay"),
    ],
)
def test_a_wrong_line_of_our_log_is_named(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    path = written(tmp_path, json_lines([log_line(1e9), log_line(1e9 + 1) | change]))

    assert refusal(path) == f"{path}, line 2: {says}"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("arrival_s,input_tokens\n1,2\n", "line 1: no column output_tokens; the header has"),
        ("TIMESTAMP,GeneratedTokens\n", "line 1: no column ContextTokens; the header has"),
        (
            "arrival_s,input_tokens,output_tokens,input_tokens\n",
            "line 1: two columns input_tokens; the header",
        ),
        ("a,b,c\n1,2,3\n", "line 1: unknown format: 'a,b,c'; a trace begins with the header arrival_s"),
        ("1,2,3\n", "line 1: unknown format: '1,2,3'"),
        ("arrival_s\r,input_tokens\n", "line 1: not a line of a CSV file: new-line character"),
        ('{"a": 1}\n', "line 1: unknown format: an object with 'a'"),
        (b"\x89PNG\r\n\x1a\n\0\0\0", "line 1: not text (UTF-8)"),
        (b"PK\0\0\0\n", "line 1: not text: it has a zero byte"),
        (b"arrival_s,input_tokens,output_tokens\n1,2,3\n\xff\xfe\n", "line 3: not text (UTF-8)"),
        (b"x" * (3 << 20), "line 1: longer than 1048576 bytes; this is not a trace"),
        (PLAIN.encode() + b"1" * (3 << 20), "line 2: longer than 1048576 bytes; this is not a trace"),
    ],
)
def test_a_file_without_a_trace_is_refused_by_its_first_lines(
    tmp_path: Path, content: str | bytes, says: str
) -> None:
    path = written(tmp_path, content)

    assert f"{path}, {says}" in refusal(path)


def test_a_format_that_was_asked_for_must_be_the_files(tmp_path: Path) -> None:
    path = written(tmp_path, PLAIN + GOOD)

    assert "no column TIMESTAMP, ContextTokens, GeneratedTokens" in refusal(path, format="azure")
    assert f"{path}, line 1: not JSON" in refusal(path, format="mooncake")
    assert "format = 'xml': must be auto or one of azure, mooncake, plain, tideserve" in refusal(
        path, format="xml"
    )


@pytest.mark.parametrize(
    ("content", "says"), [("", "is empty"), ("\n \n", "has blank lines only"), (PLAIN, "has no requests")]
)
def test_a_file_without_requests_is_refused(tmp_path: Path, content: str, says: str) -> None:
    assert refusal(written(tmp_path, content)).endswith(f"trace: {says}")


def test_a_damaged_gzip_file_is_refused(tmp_path: Path) -> None:
    whole = bytearray(gzip.compress((PLAIN + "1,1,1\n").encode()))
    whole[-6] ^= 0xFF  # the checksum
    path = written(tmp_path, bytes(whole))

    assert "the gzip file is damaged somewhere after this line" in refusal(path)


def test_a_path_that_is_no_file_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "gone") == f"{tmp_path}/gone: no such file"
    assert "a folder without request logs" in refusal(tmp_path)
    assert refusal(tmp_path / "*.jsonl") == f"{tmp_path}/*.jsonl: no file matches this pattern"
    assert "must be a file, because it is read more than once" in refusal("/dev/null")
    assert refusal([]) == "no trace given"


def test_a_line_too_late_to_be_put_in_order_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, PLAIN + "100,1,1\n40,1,1\n101.5,1,1\n\n40,1,1\n")

    assert refusal(path) == (
        f"{path}, line 6: arrived 61.5 s before a line above it, and 60 s is the most that is put in order; "
        "sort the file by arrival"
    )


def test_more_requests_at_once_than_can_be_ordered_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traces.scale.MOST_WAITING", 10_000)
    path = written(tmp_path, PLAIN + "5,1,1\n" * 200_000)

    assert "more than 10000 requests arrive within 60 s" in refusal(path)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"rate": 0.0}, "rate = 0.0: must be above 0 and at most 1000"),
        ({"rate": float("nan")}, "rate = nan: must be above 0 and at most 1000"),
        ({"time": -1.0}, "time = -1.0: must be above 0 and at most 1000"),
        ({"start_s": -1.0}, "start_s = -1.0: must be 0 or above"),
        ({"duration_s": 0.0}, "duration_s = 0.0: must be above 0"),
        ({"duration_s": float("inf")}, "duration_s = inf: must be above 0"),
        ({"max_input_tokens": 0}, "max_input_tokens = 0: must be 1 or above"),
        ({"seed": -1}, "seed = -1: must be 0 or above"),
        ({"model": "tide"}, "model = 'tide': only a request log names the model of a request"),
    ],
)
def test_options_out_of_bounds_are_refused(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    assert says in refusal(written(tmp_path, PLAIN + GOOD), **options)


def test_a_window_without_requests_says_where_the_trace_ends(tmp_path: Path) -> None:
    path = written(tmp_path, PLAIN + "1,1,1\n9,1,1\n")

    assert refusal(path, start_s=10) == (
        "trace: no request from start_s = 10 to its end, at rate = 1; it was read up to 9 s"
    )
    assert "no request from start_s = 2 to 3 s later" in refusal(path, start_s=2, duration_s=3)


def test_a_log_without_the_model_names_those_it_has(tmp_path: Path) -> None:
    path = written(tmp_path, json_lines([log_line(1e9), log_line(1e9, model="other")]))

    assert refusal(path, model="third") == (
        "trace: has no requests to replay; the models in it are 'other, tide'"
    )
