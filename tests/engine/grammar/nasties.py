"""Structured outputs that only somebody hostile or unlucky sends, by name."""

import json
from typing import Any


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def references(count: int, each: int) -> dict[str, Any]:
    definitions: dict[str, Any] = {
        f"d{i}": {
            "type": "object",
            "properties": {f"p{j}": {"$ref": f"#/$defs/d{i + 1}"} for j in range(each)},
        }
        for i in range(count)
    }
    definitions[f"d{count}"] = {"type": "integer"}
    return {"$defs": definitions, "$ref": "#/$defs/d0"}


def properties(count: int) -> dict[str, Any]:
    names = [f"property_{i}" for i in range(count)]
    return {
        "type": "object",
        "properties": {name: {"type": "integer"} for name in names},
        "required": names,
        "additionalProperties": False,
    }


TOO_MUCH: dict[str, dict[str, Any]] = {
    "10,000 choices": {"choice": [f"choice number {i}" for i in range(10_000)]},
    "100,000 choices": {"choice": [f"choice number {i}" for i in range(100_000)]},
    "one long choice": {"choice": ["a" * 1_000_000]},
    "5,000 properties": {"json": properties(5_000)},
    "an enum of 10,000": {"json": {"enum": [str(i) for i in range(10_000)]}},
    "a regular expression of 1 MB": {"regex": "a" * 1_000_000},
    "a grammar of 1 MB": {"grammar": 'root ::= "' + "a" * 1_000_000 + '"'},
    "a rule of itself": {"grammar": "root ::= root"},
    "two rules of each other": {"grammar": "root ::= a\na ::= root"},
    "a reference to itself": {"json": {"$ref": "#"}},
    "references in a circle": {
        "json": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    },
    "a reference to nothing": {"json": {"$ref": "#/$defs/none"}},
    "nested repetitions": {"regex": "(([a-z]{1,100}){1,100}){1,10}"},
    "nested optional repetitions": {"regex": "(?:[^\\x00]{0,999}){0,999}"},
    "optional then required": {"regex": "(.?){500}a{500}"},
    "a grammar's nested repetitions": {"grammar": "root ::= ([a-z]{1,100}){1,1000}"},
    "a pattern's nested repetitions": {"json": {"type": "string", "pattern": "^(([a-z]{1,9}){1,99}){1,99}$"}},
    "an ambiguous grammar": {
        "grammar": 'root ::= s s s s s s s s\ns ::= s s | "a" | "b" | [a-z] | "ab" | ""'
    },
    "an ambiguous doubling": {"grammar": 'root ::= root root | "a" | "b"'},
    "deep nesting": {"json": nested(300)},
    "deeper nesting": {"json": '{"properties": {"a": ' * 2_000 + '{"type": "integer"}' + "}}" * 2_000},
    "nesting beyond recursion": {"json": '{"a":' * 9_000 + "1" + "}" * 9_000},
    "nested groups": {"regex": "(" * 20_000 + "a" + ")" * 20_000},
    "an open group": {"regex": "("},
    "an open class": {"regex": "[a"},
    "a bad repetition": {"regex": "a{5,2}"},
    "a NUL": {"regex": "a\x00b"},
    "no such rule": {"grammar": "root ::= nothing"},
    "no root": {"grammar": 'other ::= "a"'},
    "not a grammar": {"grammar": "\u0000\uffff ::=:: |||"},
    "not JSON": {"json": "{"},
    "a schema that is a list": {"json": "[1, 2]"},
    "a schema that is false": {"json": "false"},
    "an impossible type": {"json": {"type": "nonsense"}},
    "a wrong properties": {"json": {"type": "object", "properties": 5}},
    "a wrong enum": {"json": {"enum": 5}},
    "an empty enum": {"json": {"enum": []}},
    "an empty choice": {"choice": []},
    "bounds the wrong way": {"json": {"type": "integer", "minimum": 5, "maximum": 1}},
    "items the wrong way": {"json": {"type": "array", "minItems": 5, "maxItems": 1}},
    "a keyword that xgrammar lacks": {"json": {"type": "array", "uniqueItems": True}},
    "not a structural tag": {"structural_tag": "{}"},
    "a structural tag of a list": {"structural_tag": "[]"},
    "a structural tag that begins well and cannot go on": {
        "structural_tag": json.dumps(
            {
                "type": "structural_tag",
                "format": {
                    "type": "tag",
                    "begin": "<sea>",
                    "content": {"type": "json_schema", "json_schema": {"$ref": "#"}},
                    "end": "</sea>",
                },
            }
        )
    },
    "an endless structural tag": {
        "structural_tag": json.dumps(
            {"type": "structural_tag", "format": {"type": "grammar", "grammar": "root ::= root"}}
        )
    },
}
"""All to be refused, by a bound that the message names or because they are not valid."""

FINE: dict[str, dict[str, Any]] = {
    "choices": {"choice": ["yes", "no", 'quoted " and \\ and \n']},
    "1,000 choices": {"choice": [f"choice number {i}" for i in range(1_000)]},
    "500 properties": {"json": properties(500)},
    "a schema": {"json": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}},
    "nested 30 deep": {"json": nested(30)},
    "references": {"json": references(10, 5)},
    "a recursive schema": {
        "json": {
            "type": "object",
            "properties": {"value": {"type": "string"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
            "required": ["value", "next"],
        }
    },
    "a long string": {"json": {"type": "string", "maxLength": 1000}},
    "a regular expression": {"regex": "[a-z]{1,1000}@(tide|ebb)\\.(com|org)"},
    "letters of the world": {"regex": "\\w{1,1000}"},
    "an expression grammar": {"grammar": 'root ::= term ("+" term)*\nterm ::= [0-9]+ | "(" root ")"'},
    "any object": {"json_object": True},
}
"""All to be let in."""
