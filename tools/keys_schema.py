"""Write the JSON schema of the file of API keys: `python -m tools.keys_schema`."""

import json
from pathlib import Path

from serve_app.settings.keys_file import OTHER_KEYS, KeysFile

FILE = Path(__file__).parents[1] / "config/api-keys.schema.json"


def text() -> str:
    """Return the schema for editors and checks."""
    schema = KeysFile.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "API keys of Tideserve"
    key = schema["$defs"]["ApiKey"]
    key["oneOf"] = [{"required": ["hash"]}, {"required": ["key"]}]
    key["properties"]["name"]["not"] = {"const": OTHER_KEYS}
    return json.dumps(schema, indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
