"""Aliases: which model a name means, and which aliases are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from serve_app.settings.knobs import Knobs, read_user_config
from serve_app.settings.model_names import MOST_CHARACTERS, is_pattern, model_of, name_problems
from serve_app.settings.settings_error import SettingsError

ALIASES = {"small": ("gpt-4o-mini", "claude-*", "*"), "large": ("gpt-4o", "claude-opus-*", "gpt-?o")}


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("gpt-4o", "large"),
        ("gpt-4o-mini", "small"),
        ("gpt-5o", "large"),
        ("claude-haiku-4", "small"),
        ("claude-opus-4", "large"),
        ("claude-", "small"),
        ("Claude-opus-4", "small"),
        ("a" * MOST_CHARACTERS, "small"),
        ("a" * (MOST_CHARACTERS + 1), None),
    ],
)
def test_the_most_exact_alias_wins(name: str, model: str | None) -> None:
    assert model_of(name, ALIASES) == model


def test_the_first_of_equally_exact_models_wins() -> None:
    assert model_of("gpt-4o", {"a": ("gpt-*",), "b": ("*-4o*", "g?t-*")}) == "a"
    assert model_of("other", {"a": ("gpt-*",), "b": ()}) is None


NAMES = st.text("abc-", min_size=1, max_size=6)


@given(NAMES, st.lists(st.text("abc-*?", min_size=1, max_size=6)), st.lists(NAMES))
def test_a_name_wins_over_every_pattern(name: str, patterns: list[str], others: list[str]) -> None:
    aliases = {"patterns": [alias for alias in patterns if is_pattern(alias)], "names": [*others, name]}

    assert model_of(name, aliases) == "names"


@pytest.mark.parametrize(
    "wrong",
    [[""], ["a" * 257], ["a b"], ["[ab]"], ["a", 5], "gpt-4o", [f"a-{number}" for number in range(65)]],
)
def test_an_alias_out_of_bounds_is_refused_by_its_place(wrong: object) -> None:
    with pytest.raises(ValidationError, match="aliases"):
        Knobs.model_validate({"aliases": wrong})


def test_an_alias_belongs_to_one_model_and_is_no_model() -> None:
    given = {"a": {"aliases": ["gpt-*", "b"]}, "b": {"aliases": ["gpt-*", "x", "x"]}}

    with pytest.raises(SettingsError) as caught:
        read_user_config({"a": Knobs(), "b": Knobs()}, {"autoscaling": given})

    assert caught.value.problems == [
        "autoscaling['a'].aliases[1] = 'b': a model has this name already",
        "autoscaling['b'].aliases[0] = 'gpt-*': an alias of 'a' has this name already",
        "autoscaling['b'].aliases[2] = 'x': an alias of 'b' has this name already",
    ]


def test_patterns_may_overlap() -> None:
    assert name_problems({"a": ("gpt-*", "gpt-4*"), "b": ("gpt-4?", "*")}, {"a": (), "b": ()}) == []
