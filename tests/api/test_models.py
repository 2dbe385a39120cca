import pytest

from serve_app.api.endpoints import ApiModel, Endpoints
from serve_app.api.engine_client import EngineReply
from serve_app.api.errors import ApiError
from serve_app.settings.tree import HttpSettings
from tests.stub_engine import StubEngine

ENGINE = StubEngine(EngineReply(200))


def models(*names: str) -> Endpoints:
    return Endpoints([ApiModel(name, 1_700_000_000, ENGINE) for name in names], HttpSettings())


def test_a_model_is_found_by_its_name() -> None:
    assert models("b", "org/a").find("org/a").name == "org/a"


def test_the_only_model_need_not_be_named() -> None:
    assert models("a").find(None).name == "a"


def test_one_of_several_models_must_be_named() -> None:
    with pytest.raises(ApiError) as caught:
        models("b", "a").find(None)

    error = caught.value
    assert (error.status, error.param, error.code) == (400, "model", "missing_field")
    assert error.message == "model: required; this server has 'b', 'a'."


@pytest.mark.parametrize("name", ["c", "", "A"])
def test_an_unknown_model_is_answered_with_those_there_are(name: str) -> None:
    with pytest.raises(ApiError) as caught:
        models("b", "a").find(name)

    error = caught.value
    assert (error.status, error.param, error.code) == (404, "model", "model_not_found")
    assert error.message == f"model = {name!r}: does not exist; this server has 'b', 'a'."


def test_a_name_without_end_is_not_repeated_whole() -> None:
    with pytest.raises(ApiError) as caught:
        models("a").find("x" * 100_000)

    assert len(caught.value.message) < 300


def test_a_card_is_openais_with_the_context_length() -> None:
    assert ApiModel("a", 1_700_000_000, ENGINE, 2048).card() == {
        "id": "a",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "tideserve",
        "max_model_len": 2048,
    }
