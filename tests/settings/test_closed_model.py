import math
from typing import Annotated, Any

import pytest
from pydantic import Field, ValidationError

from serve_app.settings.closed_model import ClosedModel
from serve_app.settings.knobs import IngressKnobs, Knobs, Schedule, StartingValues
from serve_app.settings.settings_error import from_pydantic
from serve_app.settings.tree import (
    AppSettings,
    HttpSettings,
    IngressSettings,
    ModelSettings,
    RequestLogSettings,
    StructuredOutputSettings,
)


class Part(ClosedModel):
    on: bool = False
    weight: float = 1.0


class Thing(ClosedModel):
    count: Annotated[int, Field(ge=0, le=10)] = 1
    limit: Annotated[int, Field(ge=1)] | None = None
    share: Annotated[float, Field(gt=0, lt=5)] = 1.0
    amounts: dict[str, Annotated[float, Field(ge=1e-4)]] = Field(default_factory=dict)
    span: tuple[float, float] | None = None
    on: bool = True
    name: str = ""
    parts: tuple[Part, ...] = ()
    anything: dict[str, Any] = Field(default_factory=dict)


def problems(model: type[ClosedModel], **given: Any) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(given)
    return from_pydantic(caught.value).problems


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"count": True}, "count = True: must be a whole number, at least 0 and at most 10, not a boolean"),
        ({"limit": False}, "limit = False: must be a whole number, at least 1, not a boolean"),
        ({"share": True}, "share = True: must be a number, greater than 0 and less than 5, not a boolean"),
        (
            {"amounts": {"disk": True}},
            "amounts = {'disk': True}: must be a number, at least 0.0001, not a boolean",
        ),
        ({"span": [1.0, True]}, "span = [1.0, True]: must be a number, not a boolean"),
        ({"parts": [{"weight": True}]}, "parts[0].weight = True: must be a number, not a boolean"),
        ({"name": True}, "name = True: input should be a valid string"),
    ],
)
def test_a_boolean_for_a_number_is_refused(given: dict[str, Any], problem: str) -> None:
    assert problems(Thing, **given) == [problem]


def test_unknown_fields_and_infinite_numbers_are_refused() -> None:
    assert problems(Thing, cuont=1) == ["cuont = 1: no such setting"]
    assert "finite" in problems(Thing, share=float("inf"))[0]


MODELS = [
    Knobs, IngressKnobs, Schedule, StartingValues,
    AppSettings, ModelSettings, HttpSettings, IngressSettings, RequestLogSettings, StructuredOutputSettings,
]  # fmt: skip
each_model = pytest.mark.parametrize("model", MODELS)


@each_model
def test_every_number_has_a_least_value(model: type[ClosedModel]) -> None:
    for name, schema in model.model_json_schema()["properties"].items():
        for kind in (schema, *schema.get("anyOf", ())):
            if kind.get("type") in ("integer", "number"):
                assert kind.keys() & {"minimum", "exclusiveMinimum", "enum"}, name


@each_model
def test_a_number_beyond_its_bounds_is_refused_by_name(model: type[ClosedModel]) -> None:
    for name, schema in model.model_json_schema()["properties"].items():
        for kind in (schema, *schema.get("anyOf", ())):
            beyond = [
                kind[bound] + step
                for bound, step in {
                    "minimum": -1,
                    "exclusiveMinimum": 0,
                    "maximum": 1,
                    "exclusiveMaximum": 0,
                }.items()
                if bound in kind
            ]
            for value in [*beyond, math.nan, math.inf] if beyond else []:
                with pytest.raises(ValidationError) as caught:
                    model.model_validate({name: value})
                assert name in {error["loc"][0] for error in caught.value.errors()}, (name, value)


@each_model
def test_no_setting_changes_once_it_is_checked(model: type[ClosedModel]) -> None:
    assert model.model_config["frozen"]
    assert model.model_config["extra"] == "forbid"


@each_model
def test_only_boolean_settings_take_a_boolean(model: type[ClosedModel]) -> None:
    """A choice such as `ttft_percentile` has no 0 and no 1."""
    taking = []
    for name in model.model_fields:
        with pytest.raises(ValidationError) as caught:
            # With a field that does not exist, so that no model is valid whatever the rest is.
            model.model_validate({name: True, "nobody": 0})
        if all(error["loc"][0] != name for error in caught.value.errors()):
            taking.append(name)

    boolean = (bool, bool | None)
    assert taking == [name for name, field in model.model_fields.items() if field.annotation in boolean]
