import pytest
from pydantic import ValidationError

from serve_app.api.generate_body import GenerateRequest


def parse(fields: str) -> GenerateRequest:
    return GenerateRequest.model_validate_json('{"prompt":"sea",' + fields + "}")


def test_null_counts_as_not_given() -> None:
    request = parse('"max_tokens":null,"temperature":null,"stream":null,"model":null')

    assert request.model_fields_set == {"prompt"}


@pytest.mark.parametrize(
    "fields",
    [
        '"max_tokens":1',
        '"max_tokens":1000000',
        '"temperature":0',
        '"temperature":2',
        '"stream":true',
        '"model":null',
    ],
)
def test_bounds_themselves_are_within(fields: str) -> None:
    assert parse(fields).prompt == "sea"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ('"prompt":""', "prompt"),
        ('"prompt":null', "prompt"),
        ('"prompt":["sea"]', "prompt"),
        ('"max_tokens":0', "max_tokens"),
        ('"max_tokens":1000001', "max_tokens"),
        ('"max_tokens":1.5', "max_tokens"),
        ('"temperature":-0.01', "temperature"),
        ('"temperature":2.01', "temperature"),
        ('"temperature":NaN', "temperature"),
        ('"temperature":Infinity', "temperature"),
        ('"stream":"perhaps"', "stream"),
        ('"model":5', "model"),
        ('"top_k":5', "top_k"),
    ],
)
def test_value_out_of_bounds_is_refused_by_name(fields: str, field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        parse(fields)

    assert [item["loc"] for item in caught.value.errors()] == [(field,)]
