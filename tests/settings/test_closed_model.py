from typing import Annotated, Any

import pytest
from pydantic import Field, ValidationError

from serve_app.settings import AppSettings, ModelSettings
from serve_app.settings.closed_model import ClosedModel
from serve_app.settings.knobs import IngressKnobs, Knobs, Schedule, StartingValues
from serve_app.settings.settings_error import from_pydantic
from serve_app.settings.tree import HttpSettings, IngressSettings, RequestLogSettings


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
def test_a_boolean_in_the_place_of_a_number_is_refused_with_its_key_and_the_bounds(
    given: dict[str, Any], problem: str
) -> None:
    assert problems(Thing, **given) == [problem]


def test_booleans_are_taken_where_they_belong() -> None:
    thing = Thing.model_validate({"on": False, "parts": [{"on": True}], "anything": {"deep": [True]}})

    assert (thing.on, thing.parts, thing.anything) == (False, (Part(on=True),), {"deep": [True]})


def test_what_is_no_field_and_what_is_not_finite_is_refused() -> None:
    assert problems(Thing, cuont=1) == ["cuont = 1: no such setting"]
    assert "finite" in problems(Thing, share=float("inf"))[0]


@pytest.mark.parametrize(
    "model",
    [
        Knobs, IngressKnobs, Schedule, StartingValues,
        AppSettings, ModelSettings, HttpSettings, IngressSettings, RequestLogSettings,
    ],
)  # fmt: skip
def test_of_all_settings_and_knobs_only_the_boolean_ones_take_a_boolean(model: type[ClosedModel]) -> None:
    """Those of a list, such as `ttft_percentile`, have no 0 and no 1 in it."""
    taking = []
    for name in model.model_fields:
        with pytest.raises(ValidationError) as caught:
            # With a field that does not exist, so that no model is valid whatever the rest is.
            model.model_validate({name: True, "nobody": 0})
        if all(error["loc"][0] != name for error in caught.value.errors()):
            taking.append(name)

    assert taking == [name for name, field in model.model_fields.items() if field.annotation is bool]
