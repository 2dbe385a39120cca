"""The values: every one documented, every one in a schema that has room for nothing else."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
import yaml

from serve_app.settings.knobs import IngressKnobs, Knobs
from serve_app.settings.tree import ModelSettings
from tests.kubernetes.tools import CHART, PROJECT
from tools.chart import __main__ as chart
from tools.chart.readme import readme
from tools.chart.values_comments import Comments, leaves

VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())


@pytest.fixture(scope="module")
def generated() -> dict[Any, str]:
    return chart.generated()


@pytest.fixture(scope="module")
def schema(generated: dict[Any, str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(generated[CHART / "values.schema.json"])
    return found


def test_schema_and_readme_are_what_make_chart_writes(generated: dict[Any, str]) -> None:
    for path, text in generated.items():
        assert path.read_text() == text, f"{path.name} is out of step: run `make chart`"


def test_the_defaults_are_valid(schema: dict[str, Any]) -> None:
    assert [error.message for error in jsonschema_rs.validator_for(schema).iter_errors(VALUES)] == []


def test_the_schema_has_every_value(schema: dict[str, Any]) -> None:
    for path, _ in leaves(VALUES):
        at = schema
        for part in path:
            at = _below(schema, at, part)


def test_the_schema_is_closed_throughout(schema: dict[str, Any]) -> None:
    ours = {**schema, "properties": schema["properties"] | {"extraObjects": {}}}  # which may be anything
    open_ones = [found for found in _all(ours) if found.get("additionalProperties") is not False]
    # Free-form maps of Kubernetes have no properties.
    assert [found for found in open_ones if "properties" in found] == []


def test_every_comment_is_the_description_of_its_value(schema: dict[str, Any]) -> None:
    comments = Comments.read((CHART / "values.yaml").read_text())
    described = {}
    for path in comments.by_path:
        at = schema
        for part in path[:-1]:
            at = _below(schema, at, part)
        described[path] = at.get("properties", {}).get(path[-1], {}).get("description")
    assert described == dict(comments.by_path)


def test_no_value_has_the_description_of_another(schema: dict[str, Any]) -> None:
    """Parts of the schema that are used twice, such as tolerations, once shared one description."""
    described = [found["description"] for found in _all(schema) if "description" in found]
    assert len(described) == len(Comments.read((CHART / "values.yaml").read_text()).by_path)


def test_the_schema_has_no_alternatives(schema: dict[str, Any]) -> None:
    """Helm would report each alternative before the mistake."""
    assert [found for found in _all(schema) if found.keys() & {"anyOf", "oneOf", "not"}] == []


@pytest.mark.parametrize(
    ("place", "settings"),
    [
        (("models", "x", "autoscaling"), Knobs),
        (("models", "x"), ModelSettings),
        (("app", "ingress", "autoscaling"), IngressKnobs),
    ],
)
def test_settings_have_the_names_of_the_code(
    place: tuple[str, ...], settings: Any, schema: dict[str, Any]
) -> None:
    at = schema
    for part in place:
        at = _below(schema, at, part)
    ours = set(at["properties"]) - {"gpuProfile", "autoscaling", "modelCache"}
    of_the_profile = {"device", "accelerator_type", "gpus_per_replica", "resources"}
    assert ours == set(settings.model_fields) - (of_the_profile if settings is ModelSettings else set())


def test_bounds_are_those_of_the_code(schema: dict[str, Any]) -> None:
    valid = jsonschema_rs.validator_for(schema).is_valid
    for headroom, fine in ((10, True), (10.1, False), (-0.1, False)):
        model = {"gpuProfile": "l4", "model": "a/b", "autoscaling": {"headroom": headroom}}
        assert valid(VALUES | {"models": {"m": model}}) is fine


def test_every_documented_configuration_fits_the_schema(schema: dict[str, Any]) -> None:
    validator = jsonschema_rs.validator_for(schema)
    for path in sorted(PROJECT.glob("config/serve*.yaml")):
        application = yaml.safe_load(path.read_text())["applications"][0]
        knobs = application["deployments"][0]["user_config"]["autoscaling"]
        models = {}
        for index, model in enumerate(application["args"]["models"]):
            own = {key: value for key, value in model.items() if key not in ("device", "accelerator_type")}
            models[f"m{index}"] = own | {"gpuProfile": "cpu", "autoscaling": knobs[model["name"]]}
        assert [error.message for error in validator.iter_errors(VALUES | {"models": models})] == [], (
            path.name
        )


def test_a_value_without_a_comment_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"without a comment that begins with `# -- `: b\.c$"):
        readme("", {"a": 1, "b": {"c": 2}}, Comments.read("# -- one\na: 1\nb:\n  c: 2\n"))


def test_a_comment_may_go_on_over_lines() -> None:
    assert Comments.read("# -- one\n# two\na: 1\n# three\nb: 2\n").by_path == {("a",): "one two"}


def _below(schema: dict[str, Any], at: dict[str, Any], part: str) -> dict[str, Any]:
    if "$ref" in at:
        at = schema["definitions"][at["$ref"].rpartition("/")[2]]
    if part in at.get("properties", {}):
        found: dict[str, Any] = at["properties"][part]
        return found
    more: dict[str, Any] = at["additionalProperties"]
    return more


def _all(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every schema within a schema, except conditions."""
    yield found
    below = [*found.get("properties", {}).values(), *found.get("definitions", {}).values()]
    below += [found[key] for key in ("items", "additionalProperties") if isinstance(found.get(key), dict)]
    for schema in below:
        yield from _all(schema)
