"""JSON schemas of Tideserve's settings, from their pydantic models, and the keys that are required."""

import ast
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from serve_app.settings.budget import Team
from serve_app.settings.keys_file import ApiKey
from serve_app.settings.knobs import IngressKnobs, Knobs
from serve_app.settings.load import OWNED, REFUSED, known_arguments
from serve_app.settings.storage import BatchSettings, LedgerSettings
from serve_app.settings.telemetry import TelemetrySettings
from serve_app.settings.tree import HttpSettings, IngressSettings, ModelSettings, RequestLogSettings
from tools.chart.conditions import when

Schema = dict[str, Any]


def require(schema: Schema, defaults: Mapping[str, Any]) -> None:
    """Require the keys that the templates need, in `schema` and in all sections below."""
    properties = schema.get("properties", {})
    wanted = [name for name, below in properties.items() if _is_required(below, defaults.get(name))]
    if wanted:
        schema["required"] = wanted
    for name in wanted:
        if isinstance(defaults[name], Mapping):
            require(properties[name], defaults[name])


def _is_required(schema: Schema, default: Any) -> bool:
    """Whether a key is a number, switch, section or non-empty text; not a list, labels or Kubernetes type."""
    if "$ref" in schema or default is None or isinstance(default, list):
        return False
    if isinstance(default, Mapping):
        return bool(default) and schema.get("additionalProperties") != {"type": "string"}
    if isinstance(default, str):
        return not _may_be_empty(schema)
    return True


def _may_be_empty(schema: Schema) -> bool:
    if "enum" in schema:
        return "" in schema["enum"]
    if "pattern" in schema:
        return bool(schema["pattern"].startswith("^$|"))
    return "minLength" not in schema


_PARSERS = (
    ("tool_call_parser", "tool_parser_plugin", "tool_parsers", "_TOOL_PARSERS_TO_REGISTER"),
    ("reasoning_parser", "reasoning_parser_plugin", "reasoning", "_REASONING_PARSERS_TO_REGISTER"),
)
"""Settings, vLLM's arguments for plugins that add names, and where vLLM's own names are."""

FROM_PROFILE = ("device", "accelerator_type", "gpus_per_replica", "resources")
"""Settings of a model that its GPU profile decides."""


class SettingsTypes:
    """Collects the definitions that the models' schemas share."""

    def __init__(self) -> None:
        self.definitions: dict[str, Any] = {}

    def knobs(self) -> dict[str, Any]:
        """A model's `autoscaling`."""
        return self._of(Knobs)

    def ingress_knobs(self) -> dict[str, Any]:
        """The ingress's `autoscaling`."""
        return self._of(IngressKnobs)

    def http(self) -> dict[str, Any]:
        """`app.http`; the chart sets the file of keys itself."""
        return self._of(HttpSettings, without=("api_keys_file",))

    def api_key(self) -> dict[str, Any]:
        """An entry of `apiKeys.entries`, without keys in plain text: releases keep their values."""
        schema = self._of(ApiKey, without=("key",))
        return {**schema, "required": ["name", "hash"]}

    def teams(self) -> dict[str, Any]:
        """`apiKeys.teams`."""
        return {"type": "object", "additionalProperties": self._of(Team)}

    def request_log(self) -> dict[str, Any]:
        """`app.request_log`."""
        return self._of(RequestLogSettings)

    def ledger(self) -> dict[str, Any]:
        """`app.ledger`."""
        return self._of(LedgerSettings)

    def batch(self) -> dict[str, Any]:
        """`app.batch`."""
        return self._of(BatchSettings, without=("resources",))

    def telemetry(self) -> dict[str, Any]:
        """`app.telemetry`."""
        return self._of(TelemetrySettings)

    def ingress(self) -> dict[str, Any]:
        """`app.ingress`, with its knobs."""
        schema = self._of(IngressSettings, without=("resources",))
        schema["properties"]["autoscaling"] = self.ingress_knobs()
        return schema

    def model(self) -> dict[str, Any]:
        """An entry of `models`: the settings, and the two keys of the chart's own."""
        schema = self._of(ModelSettings, without=FROM_PROFILE)
        schema["required"] = ["gpuProfile", "model"]
        schema["allOf"] = [_known_parsers(*kind) for kind in _PARSERS]
        # vLLM has no other way to read a bucket.
        formats = [name for name in schema["properties"]["load_format"]["enum"] if name.startswith("runai_")]
        bucket: dict[str, Any] = {"model": {"type": "string", "pattern": "^(s3|gs|az)://"}}
        schema["allOf"].append(when(bucket, {"load_format": {"enum": formats}}))
        own = {
            "gpuProfile": {"type": "string"},
            "engine_args": engine_arguments(),
            "autoscaling": self.knobs(),
        }
        schema["properties"] |= own
        variant = self.definitions["VariantSettings"]
        for name in FROM_PROFILE:
            variant["properties"].pop(name)
        variant["properties"] |= {"gpuProfile": own["gpuProfile"], "engine_args": own["engine_args"]}
        compact = {"disable_any_whitespace": {"const": True}}
        self.definitions["StructuredOutputSettings"] |= when(
            compact, {"backend": {"enum": ["xgrammar", "guidance"]}}, required=False
        )
        self.definitions["Schedule"]["properties"]["timezone"] = {"type": "string", "enum": timezones()}
        return schema

    def _of(self, settings: type[BaseModel], without: tuple[str, ...] = ()) -> dict[str, Any]:
        schema: dict[str, Any] = _without_titles(
            settings.model_json_schema(ref_template="#/definitions/{model}")
        )
        self.definitions |= schema.pop("$defs", {})
        for name in without:
            schema["properties"].pop(name, None)
        schema.pop("description", None)
        return schema


def engine_arguments() -> dict[str, Any]:
    """`engine_args` of a model: vLLM's arguments that Tideserve does not decide or refuse.

    Raises RuntimeError without vLLM, whose source has the names.
    """
    known = known_arguments()
    if known is None:
        raise RuntimeError("vLLM is not installed: its source has the names of its arguments")
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {name: {} for name in sorted(known - OWNED - set(REFUSED))},
    }


def _known_parsers(setting: str, plugin: str, folder: str, table: str) -> dict[str, Any]:
    """Return a schema that holds a parser to vLLM's names, unless a plugin of the user's adds others."""
    source = Path(str(resources.files("vllm") / folder / "__init__.py")).read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == table:
            names = sorted(ast.literal_eval(node.value))
            own = {"properties": {"engine_args": {"required": [plugin]}}, "required": ["engine_args"]}
            return {"if": own, "else": {"properties": {setting: {"enum": [*names, None]}}}}
    raise RuntimeError(f"vLLM's {folder} has no {table}")


def timezones() -> list[str]:
    """Names of the IANA time zone database, from the package that the images install too."""
    return (resources.files("tzdata") / "zones").read_text(encoding="utf-8").split()


def _without_titles(schema: Any) -> Any:
    """Drop pydantic's titles, which repeat the names, and its defaults, which the application applies."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    plain: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            plain[key] = {name: _without_titles(field) for name, field in value.items()}
        elif key not in ("title", "default", "description"):
            plain[key] = _without_titles(value)
    return merged(plain)


def merged(schema: dict[str, Any]) -> dict[str, Any]:
    """Write alternatives that differ only in type as a list of types: Helm reports each part of `anyOf`.

    A null beside a reference is dropped, because Helm removes a null key before it checks the schema.
    """
    for key in ("anyOf", "oneOf"):
        parts = [part for part in schema.get(key, ()) if part != {"type": "null"}]
        null = ["null"] if len(parts) < len(schema.get(key, ())) else []
        rest = {name: value for name, value in schema.items() if name != key}
        if len(parts) == 1 and "$ref" in parts[0]:
            return {**rest, **parts[0]}
        if len(parts) == 1:
            enum = {"enum": [*parts[0]["enum"], *([None] if null else [])]} if "enum" in parts[0] else {}
            return {**rest, **parts[0], **enum, "type": _types(parts, null)}
        if parts and all(set(part) == {"type"} for part in parts):
            return {**rest, "type": _types(parts, null)}
    return schema


def _types(parts: list[dict[str, Any]], null: list[str]) -> list[str]:
    names = [part["type"] if isinstance(part["type"], list) else [part["type"]] for part in parts]
    return list(dict.fromkeys([*(name for some in names for name in some), *null]))
