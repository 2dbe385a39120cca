from serve_app.batch.queue import LeasedLine
from serve_app.runner.open_batch import BatchWork
from serve_app.wire.batches import BatchLine, LineAnswer
from tests.batch.stored import NOW
from tests.runner.bench import refused


def test_refusals_halve_the_lines_in_flight() -> None:
    """However many lines were answered before."""
    lines = {number: LeasedLine(number, f"r{number}", 0, 1, 1) for number in range(8)}
    work = BatchWork(in_flight=dict(lines), most=20_000)

    for number in lines:
        work.take(refused(BatchLine(number, b"")), NOW)

    assert work.most == 4


def test_lines_in_flight_fit_into_memory() -> None:
    work = BatchWork(most=1000, mean_bytes=1 << 20)
    assert work.fitting == 64

    for number in range(60):
        work.in_flight[number] = LeasedLine(number, f"r{number}", 0, 1, 1)
        work.take(LineAnswer(number, "r", 200, b"x" * (7 << 20)), 0.0)
        work.answered.clear()
        work.answered_bytes = 0

    assert work.fitting == 8
    work.answered_bytes = 56 << 20
    assert work.fitting == 1
    work.answered_bytes = 1 << 30
    assert work.fitting == 1
