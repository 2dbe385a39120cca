"""The queue of lines: one contract over SQLite and a folder, and over Postgres and S3."""

import json

from serve_app.runner.open_batch import LONGEST_LEASE_S
from tests.batch.stored import NOW, USAGE, Stored, answered, body


def test_leased_lines_are_taken_once_until_their_lease_ends(stored: Stored) -> None:
    batch = stored.add(5)

    first = stored.queue.lease(batch.id, 3, NOW, 30)
    second = stored.queue.lease(batch.id, 9, NOW, 30)
    none = stored.queue.lease(batch.id, 9, NOW + 29, 30)
    again = stored.queue.lease(batch.id, 9, NOW + 30, 30)

    assert [line.line for line in first] == [1, 2, 3]
    assert [line.line for line in second] == [4, 5]
    assert none == []
    assert [(line.line, line.attempts) for line in again] == [(number, 2) for number in range(1, 6)]


def test_the_longest_lease_counts_a_moment_earlier(stored: Stored) -> None:
    """The time of the answer that asks for it is later than that of the next turn."""
    batch = stored.add(1)
    stored.queue.lease(batch.id, 1, NOW, 30)

    stored.queue.set_lease(batch.id, [1], NOW + 1 + LONGEST_LEASE_S)

    assert stored.queue.lease(batch.id, 1, NOW, 30) == []


def test_a_lease_may_be_renewed_or_given_back(stored: Stored) -> None:
    batch = stored.add(2)
    stored.queue.lease(batch.id, 2, NOW, 30)

    stored.queue.set_lease(batch.id, [1], NOW + 90)
    stored.queue.set_lease(batch.id, [2], NOW + 5)

    assert [line.line for line in stored.queue.lease(batch.id, 9, NOW + 5, 30)] == [2]
    assert [line.line for line in stored.queue.lease(batch.id, 9, NOW + 90, 30)] == [1, 2]


def test_requests_are_the_bodies_of_the_input_file(stored: Stored) -> None:
    batch = stored.add(3)
    lines = stored.queue.lease(batch.id, 3, NOW, 30)

    requests = stored.queue.requests(batch, [lines[2], lines[0]])

    assert [(each.number, json.loads(each.body)) for each in requests] == [(3, body(3)), (1, body(1))]


def test_only_the_first_answer_of_a_line_counts(stored: Stored) -> None:
    batch = stored.add(2)
    one, two = stored.queue.lease(batch.id, 2, NOW, 30)

    assert stored.queue.finish(batch.id, [answered(one, text=b'{"first":1}')]) == {"completed": 1}
    assert stored.queue.finish(batch.id, [answered(one, 500), answered(two, 400)]) == {"failed": 1}

    assert stored.queue.end(stored.batch(batch), NOW) == "completed"
    output, errors = stored.results(batch)
    assert output["r1"]["response"]["body"] == {"first": 1}
    assert errors["r2"]["response"]["status_code"] == 400
    assert (output.keys(), errors.keys()) == ({"r1"}, {"r2"})
    counts = stored.batch(batch).document()["request_counts"]
    assert counts == {"total": 2, "completed": 1, "failed": 1}


def test_usage_is_the_sum_of_the_counted_answers(stored: Stored) -> None:
    batch = stored.add(3)
    lines = stored.queue.lease(batch.id, 3, NOW, 30)

    stored.queue.finish(batch.id, list(map(answered, lines)))
    stored.queue.finish(batch.id, list(map(answered, lines)))

    assert stored.batch(batch).document()["usage"] == {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 3},
        "output_tokens": 6,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 15,
    }


def test_a_line_of_the_output_has_openais_shape(stored: Stored) -> None:
    batch = stored.add(1)
    stored.queue.finish(batch.id, [answered(stored.queue.lease(batch.id, 1, NOW, 30)[0])])
    stored.queue.end(batch, NOW)

    output, _ = stored.results(batch)

    assert output["r1"] == {
        "id": "batch_req_1",
        "custom_id": "r1",
        "response": {"status_code": 200, "request_id": "batch_req_1", "body": json.loads(USAGE)},
        "error": None,
    }
