import os
import threading

import psutil

from benchmarks.idle import Reading, read, to_table


def test_each_end_of_a_wait_is_counted() -> None:
    reader, writer = os.pipe()
    answered, answer = os.pipe()

    def echo() -> None:
        while data := os.read(reader, 1):
            os.write(answer, data)

    thread = threading.Thread(target=echo)
    thread.start()
    before = read([psutil.Process()])
    for _ in range(20):
        os.write(writer, b"x")
        os.read(answered, 1)
    used = read([psutil.Process()]).since(before)
    os.close(writer)
    thread.join()

    woken = {tid: wakes for (_, tid, _), (wakes, _) in used.threads.items()}
    assert 15 <= woken[thread.native_id or 0] <= 25
    for descriptor in (reader, answered, answer):
        os.close(descriptor)


def test_the_dearest_process_comes_first() -> None:
    threads = {
        (1, 1, "main"): (100, 0.5), (1, 2, "poll"): (20, 0.1), (2, 3, "main"): (50, 2.0),
    }  # fmt: skip

    assert to_table(Reading({1: "gcs", 2: "controller"}, threads), 10.0).splitlines() == [
        "| process    | processes | wake-ups/s |  cores | busiest threads, wake-ups/s |",
        "| ---------- | --------: | ---------: | -----: | --------------------------: |",
        "| controller |         1 |        5.0 | 0.2000 |                      main 5 |",
        "| gcs        |         1 |       12.0 | 0.0600 |             main 10, poll 2 |",
        "| all        |         2 |       17.0 | 0.2600 |                             |",
    ]
