"""Parts of a JSON schema that say which values go together."""

from typing import Any

Schema = dict[str, Any]


def choice(*values: str) -> Schema:
    """Return the schema of a string out of `values`."""
    return {"type": "string", "enum": list(values)}


def when(condition: Schema, then: Schema, *, required: bool = True) -> Schema:
    """Return a schema that holds the fields of `then` to theirs, where the fields of `condition` fit theirs.

    With `required` the fields of `then` must be there.
    """
    consequence: Schema = {"properties": then}
    if required:
        consequence["required"] = [*then]
    return {"if": {"properties": condition, "required": [*condition]}, "then": consequence}
