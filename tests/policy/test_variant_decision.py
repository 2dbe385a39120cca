"""How the work of a model is divided over its variants."""

from serve_app.policy.variant_decision import divide


def test_ready_replicas_do_the_work_before_cheaper_ones() -> None:
    speeds, ready, wanted = {"cheap": 1.0, "fast": 2.0}, {"cheap": 0, "fast": 1}, {"cheap": 3, "fast": 2}

    assert divide(1, speeds, {}, ready, wanted) == {"cheap": 0, "fast": 1}
    assert divide(4, speeds, {}, ready, wanted) == {"cheap": 2, "fast": 1}
    assert divide(9, speeds, {}, ready, wanted) == {"cheap": 3, "fast": 2}


def test_base_counts_as_work_done() -> None:
    assert divide(2, {"a": 1.0, "b": 1.0}, {"b": 1}, {"a": 5, "b": 5}) == {"a": 1, "b": 1}
    assert divide(0, {"a": 1.0}, {"a": 1}, {"a": 5}) == {"a": 1}
