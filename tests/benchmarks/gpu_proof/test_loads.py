from benchmarks.gpu_proof.bench import plain
from benchmarks.gpu_proof.loads import at_times, poisson


def test_groups_come_together_and_the_rate_is_the_same() -> None:
    alone, groups = poisson(2.0, 30.0, seed=1), poisson(2.0, 30.0, seed=1, together=4)
    assert (len(alone), len(groups)) == (60, 60)
    assert len(set(alone)) == 60
    assert len(set(groups)) == 15
    assert all(0 <= at < 30 for at in alone + groups)


def test_requests_are_planned_by_their_times_and_share_what_they_should() -> None:
    planned = at_times([3.0, 1.0], 100, 20, shared_tokens=90)
    assert [(one.index, one.at_s) for one in planned] == [(0, 1.0), (1, 3.0)]
    assert {(one.prompt_tokens, one.output_tokens, one.prefix_tokens) for one in planned} == {(100, 20, 90)}


def test_figures_are_short_and_never_infinite() -> None:
    assert plain({"a": [1 / 3, float("inf")], "b": (1, "x"), "c": None}) == {
        "a": [0.33333, None],
        "b": [1, "x"],
        "c": None,
    }
