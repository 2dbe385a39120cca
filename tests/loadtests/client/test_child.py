import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.client.processes import Message, Unpacker, pack
from loadtests.record import Record, Timekeeping

MESSAGES: list[Message] = [
    Message(),
    Message(
        Record(0, "default", "tide", 0.0, 0.001, 2.5, "answered", 200, 1, "", (1.0, 2.0), 5, 2, 5, 2, None)
    ),
    Message(Record(1, "ü", "tide", 1.0, 1.0, 2.5, "failed", error="no", phases=((1.5, "imports"),))),
    Message(timekeeping=Timekeeping(1.0, 2.0, 3.0, 4.0, 0.5)),
    Message(failed="it broke"),
]
DATA = b"".join(map(pack, MESSAGES))


@given(st.lists(st.integers(0, len(DATA)), max_size=20))
def test_messages_survive_any_cut(cuts: list[int]) -> None:
    unpacker, found = Unpacker(), list[Message]()
    edges = [0, *sorted(cuts), len(DATA)]
    for start, end in itertools.pairwise(edges):
        found += unpacker.feed(DATA[start:end])
    assert found == MESSAGES


def test_bytes_that_are_no_message_are_an_error() -> None:
    with pytest.raises(msgspec.DecodeError, match="array"):
        list(Unpacker().feed(b"\x01\x00\x00\x00x"))
