from serve_app.controller.replica_time import ReplicaTime

NOW = 1_700_000_000.0


def test_replicas_seen_are_counted_until_they_are_looked_at_again() -> None:
    time = ReplicaTime()
    time.add("tide", {"starting": 2, "ready": 1, "draining": 0}, NOW)

    assert time.add("tide", {"ready": 3}, NOW + 0.5) == {"starting": 1.0, "ready": 0.5}
    assert time.add("tide", {"ready": 0}, NOW + 2.0) == {"ready": 4.5}
    assert time.add("tide", {"ready": 1}, NOW + 3.0) == {}


def test_nothing_is_known_of_the_time_before_the_first_look() -> None:
    assert ReplicaTime().add("tide", {"ready": 5}, NOW) == {}


def test_of_a_long_silence_ten_seconds_are_counted() -> None:
    time = ReplicaTime()
    time.add("tide", {"ready": 2}, NOW)

    assert time.add("tide", {"ready": 2}, NOW + 9.0) == {"ready": 18.0}
    assert time.add("tide", {"ready": 2}, NOW + 3609.0) == {"ready": 20.0}


def test_a_clock_that_is_set_back_counts_nothing() -> None:
    time = ReplicaTime()
    time.add("tide", {"ready": 2}, NOW)

    assert time.add("tide", {"ready": 2}, NOW - 60.0) == {}
    assert time.add("tide", {"ready": 2}, NOW - 59.0) == {"ready": 2.0}


def test_each_model_has_a_time_of_its_own() -> None:
    time = ReplicaTime()
    time.add("tide", {"ready": 1}, NOW)
    time.add("embed", {"ready": 4}, NOW + 1.0)

    assert time.add("tide", {"ready": 1}, NOW + 2.0) == {"ready": 2.0}
    assert time.add("embed", {"ready": 4}, NOW + 2.0) == {"ready": 4.0}
