import json
from typing import Any

import jsonschema
import pytest

from tools import keys_schema

HASH = "sha256:" + "0" * 64


def test_published_schema_is_that_of_the_settings() -> None:
    assert keys_schema.FILE.read_text(encoding="utf-8") == keys_schema.text(), (
        "run `python -m tools.keys_schema` and look at what changed"
    )


@pytest.mark.parametrize(
    ("entry", "valid"),
    [
        ({"name": "a", "hash": HASH}, True),
        ({"name": "a", "key": "sk-a", "lane": "background", "models": ["x-*"], "weight": 2.5}, True),
        ({"name": "a", "hash": HASH, "expires": "2027-01-31T00:00:00Z", "metadata": {"team": "x"}}, True),
        ({"name": "a"}, False),
        ({"name": "a", "hash": HASH, "key": "sk-a"}, False),
        ({"name": "a", "hash": "0" * 64}, False),
        ({"name": "a", "hash": HASH, "lane": "fast"}, False),
        ({"name": "a", "hash": HASH, "tokens_per_minute": 0}, False),
        ({"name": "a b", "hash": HASH}, False),
        ({"name": "other", "hash": HASH}, False),
        ({"name": "a", "hash": HASH, "teams": "x"}, False),
        ({"name": "a", "hash": HASH, "team": "x", "budget": {"usd": 3, "per": "day"}}, True),
        ({"name": "a", "hash": HASH, "budget": {"usd": 3, "per": "year"}}, False),
    ],
)
def test_schema_accepts_what_the_server_accepts(entry: Any, valid: bool) -> None:
    found = jsonschema.Draft202012Validator(json.loads(keys_schema.text())).iter_errors({"keys": [entry]})
    assert (next(found, None) is None) == valid
