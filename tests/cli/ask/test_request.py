import pytest

from serve_app.api.cold_wait import ColdWait
from serve_app.cli.ask.display import Wait
from serve_app.cli.ask.request import Event, EventReader

STREAM = (
    ": waiting for a replica of a b: phase=imports eta_s=13 waited_s=5\n\n"
    'data: {"text":"Küste"}\n\n'
    "event: error\ndata: {1}\n\n"
    ": a comment of somebody else's\n\n"
    "data: one\ndata: two\n\n"
    "event: nothing\n\n"
    "id: 7\ndata:[DONE]\n\n"
).encode()
FOUND = [
    Wait("imports", 13, 5),
    Event("", '{"text":"Küste"}'),
    Event("error", "{1}"),
    Event("", "one\ntwo"),
    Event("", "[DONE]"),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_and_waits_are_found_wherever_the_bytes_are_cut(size: int) -> None:
    reader = EventReader()

    found = [one for at in range(0, len(STREAM), size) for one in reader.feed(STREAM[at : at + size])]

    assert found == FOUND


def test_line_ends_may_be_those_of_http() -> None:
    assert list(EventReader().feed(STREAM.replace(b"\n", b"\r\n"))) == FOUND


def test_an_event_without_its_empty_line_has_not_come() -> None:
    assert list(EventReader().feed(b"data: [DONE]\n")) == []


@pytest.mark.parametrize(
    ("told", "read"),
    [
        (ColdWait("tide", "imports", 12.2, 5.7), Wait("imports", 13, 5)),
        (ColdWait("org/tide:v1", "pending_capacity", None, 0.0), Wait("pending_capacity", None, 0)),
    ],
)
def test_the_servers_own_comments_are_understood(told: ColdWait, read: Wait) -> None:
    assert list(EventReader().feed(told.comment())) == [read]


@pytest.mark.parametrize("eta", ["soon", "-1", "٣", "1e9", "9" * 40])
def test_an_eta_that_is_no_number_is_unknown(eta: str) -> None:
    comment = f": phase=busy eta_s={eta} waited_s=1\n\n".encode()

    assert list(EventReader().feed(comment)) == [Wait("busy", None, 1)]
