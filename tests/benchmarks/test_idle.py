import threading
import time

import psutil

from benchmarks.idle import Reading, read, to_table


def test_each_end_of_a_wait_is_counted() -> None:
    slept, may_end = threading.Event(), threading.Event()

    def sleep() -> None:
        for _ in range(20):
            time.sleep(0.002)
        slept.set()
        may_end.wait()

    before = read([psutil.Process()])
    thread = threading.Thread(target=sleep)
    thread.start()
    slept.wait()
    used = read([psutil.Process()]).since(before)
    may_end.set()
    thread.join()

    woken = {tid: wakes for (_, tid, _), (wakes, _) in used.threads.items()}
    assert 20 <= woken[thread.native_id or 0] <= 40  # Python's lock costs some more


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
