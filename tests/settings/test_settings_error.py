import pickle

import pytest

from serve_app.settings import SettingsError, load_settings
from serve_app.settings.settings_error import dotted, shown


def problems(args: object) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load_settings(args)
    return caught.value.problems


@pytest.mark.parametrize(
    ("location", "path"),
    [
        (("models", 0, "dtype"), "models[0].dtype"),
        (("models", 1, "engine_args", "seed"), "models[1].engine_args.seed"),
        (("ingress", "min_replicas"), "ingress.min_replicas"),
        (("http",), "http"),
        ((), "(top level)"),
    ],
)
def test_a_location_reads_like_the_path_to_a_key(location: tuple[int | str, ...], path: str) -> None:
    assert dotted(location) == path


def test_a_long_value_is_cut_and_a_short_one_is_not() -> None:
    assert shown("a" * 118) == repr("a" * 118)
    assert shown("a" * 119) == "'" + "a" * 119 + "…"


def test_every_problem_is_a_line_of_the_message() -> None:
    error = SettingsError(["a = 1: too small", "b: required, and not given"])

    assert str(error) == "invalid settings:\n  - a = 1: too small\n  - b: required, and not given"


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        (
            {"name": "a", "max_num_seqs": 0},
            "models[0].max_num_seqs = 0: input should be greater than or equal to 1",
        ),
        ({"name": "a", "max_len": 2048}, "models[0].max_len = 2048: no such setting"),
        ({}, "models[0].name: required, and not given"),
    ],
)
def test_a_problem_is_named_with_its_key_its_value_and_its_bound(model: object, problem: str) -> None:
    assert problems({"models": [model]}) == [problem]


def test_our_own_checks_read_like_pydantics() -> None:
    (line,) = problems({"models": [{"name": "sea horse"}]})

    assert line.startswith("models[0].name = 'sea horse': must consist of letters, digits and")


def test_all_problems_are_told_at_once() -> None:
    assert [
        line.partition(" ")[0] for line in problems({"models": [{"name": ""}], "http": {"max_body_bytes": 1}})
    ] == ["models[0].name", "http.max_body_bytes"]


def test_a_model_with_a_problem_does_not_make_the_list_count_as_empty() -> None:
    lines = problems({"models": [{"name": "a", "dtype": "int3"}, {"name": "b", "dtype": "int3"}]})

    assert [line.partition(" ")[0] for line in lines] == ["models[0].dtype", "models[1].dtype"]


def test_a_list_that_is_empty_is_still_too_short_whatever_else_is_wrong_elsewhere() -> None:
    short = "models = []: tuple should have at least 1 item after validation, not 0"

    assert problems({"models": []}) == [short]
    assert problems({"models": [], "http": {"max_body_bytes": 1}})[0] == short


def test_an_error_survives_the_way_between_processes() -> None:
    """Ray pickles what a replica fails with."""
    error = SettingsError(["a = 1: too small", "b: required"])

    came = pickle.loads(pickle.dumps(error))

    assert (came.problems, str(came)) == (error.problems, str(error))
