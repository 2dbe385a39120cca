from array import array

import pytest

from benchmarks.transport import __main__ as command
from benchmarks.transport.pair import Plan, Side, measure
from benchmarks.transport.pieces import PIECE_BYTES, Consumer, head, tail


def piece(stream: int, step: int) -> bytes:
    return head(stream) + tail(step, 1)


@pytest.mark.parametrize("candidate", command.CANDIDATES)
@pytest.mark.parametrize("paced", [True, False])
def test_every_piece_arrives_in_order_and_whole(candidate: str, paced: bool) -> None:
    engine, ingress = measure(Plan(candidate, 2, paced, 0.2))  # its consumers refuse any other piece

    assert engine.steps == ingress.steps > 2
    assert engine.tokens > 0
    assert ingress.cpu_per_token_s > 0
    assert 0 < ingress.p50_s <= ingress.p99_s


def test_a_consumer_takes_pieces_however_they_are_cut() -> None:
    latencies = array("q")
    consumer = Consumer(3, latencies)
    data = b"".join(piece(3, step) for step in range(3))
    for cut in (data[:10], data[10 : PIECE_BYTES + 1], data[PIECE_BYTES + 1 :]):
        consumer.take(cut)

    assert consumer.steps == len(latencies) == 3


@pytest.mark.parametrize("wrong", [piece(4, 0), piece(3, 1), piece(3, 0)[:-1] + b" "])
def test_a_consumer_refuses_a_piece_of_another_stream_or_step_or_a_broken_one(wrong: bytes) -> None:
    with pytest.raises(ValueError, match="this is not step 0"):
        Consumer(3, array("q")).take(wrong)


def test_the_table_has_the_median_of_the_rounds() -> None:
    found = {
        Plan(name, 4, paced, 1.0): [
            (Side(9, 36, 0.5, 1e-6 * n), Side(9, 36, 0.5, 2e-6 * n)) for n in (1, 9, 3)
        ]
        for name in command.CANDIDATES
        for paced in (True, False)
    }
    row = command.to_table(found).splitlines()[2]

    assert [cell.strip() for cell in row.split("|")[1:5]] == ["ZeroMQ", "4", "3.00", "6.00"]


@pytest.mark.parametrize("arguments", [["--streams", "few"], ["--streams", "0"], ["--rounds", "0"]])
def test_a_wrong_command_line_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(arguments)

    assert caught.value.code == 2
    assert "--streams" in capsys.readouterr().err
