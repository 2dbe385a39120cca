import pickle

import pytest

from serve_app.settings.load import load_settings
from serve_app.settings.settings_error import SettingsError, dotted, shown


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
def test_a_location_is_shown_as_a_path(location: tuple[int | str, ...], path: str) -> None:
    assert dotted(location) == path


def test_only_a_long_value_is_cut() -> None:
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
        (
            {"name": "sea horse"},
            "models[0].name = 'sea horse': must consist of letters, digits and ._:/@+-, and begin with a "
            "letter or digit",
        ),
        (
            {"name": "ingress"},
            "models[0].name = 'ingress': is reserved: `tideserve knobs set ingress` changes the knobs of the "
            "ingress",
        ),
    ],
)
def test_a_problem_names_key_value_and_bound(model: object, problem: str) -> None:
    assert problems({"models": [model]}) == [problem]


def test_every_problem_is_reported() -> None:
    def keys(args: object) -> list[str]:
        return [line.partition(" ")[0] for line in problems(args)]

    body = {"max_body_bytes": 1}
    invalid = [{"name": "a", "dtype": "int3"}, {"name": "b", "dtype": "int3"}]
    assert keys({"models": [{"name": ""}], "http": body}) == ["models[0].name", "http.max_body_bytes"]
    # Pydantic counts only valid entries: two invalid models are not an empty list.
    assert keys({"models": invalid}) == ["models[0].dtype", "models[1].dtype"]
    short = "models = []: tuple should have at least 1 item after validation, not 0"
    assert problems({"models": [], "http": body})[0] == short


def test_an_error_can_be_pickled() -> None:
    """Ray pickles what a replica fails with."""
    error = SettingsError(["a = 1: too small", "b: required"])

    came = pickle.loads(pickle.dumps(error))

    assert (came.problems, str(came)) == (error.problems, str(error))
