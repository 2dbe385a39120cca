"""Write the chart's generated files; run it through `make chart`."""

import json
from collections.abc import Mapping
from pathlib import Path

import yaml

from serve_app import env
from serve_app.settings.document import parse_yaml
from tools.chart.manifests import FOLDER, manifests
from tools.chart.readme import readme
from tools.chart.schema import ValuesSchema
from tools.chart.values_comments import Comments

_HAPROXY_SUPERVISOR = "/opt/tideserve/bin/tideserve-front"
"""The program in the images. `tideserve run` writes one of its own."""
CHART = Path(__file__).parents[2] / "helm/tideserve"


def generated() -> dict[Path, str]:
    """The text of every generated file of the chart, by its path."""
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    comments = Comments.read(text)
    values = parse_yaml(text, "values.yaml").value
    schema = json.dumps(ValuesSchema(comments, values).build(), indent=1, ensure_ascii=False)
    introduction = (CHART / "README.introduction.md").read_text(encoding="utf-8")
    fast = {**env.FAST_PATH, **env.HAPROXY, env.HAPROXY_COMMAND: _HAPROXY_SUPERVISOR}
    flags = "# Written by `make chart` from serve_app/env.py, which has the reasons.\n"
    flags += yaml.safe_dump({"always": dict(env.ALWAYS), "fast": fast}, sort_keys=False)
    return {
        CHART / "files/ray-flags.yaml": flags,
        CHART / "values.schema.json": schema + "\n",
        CHART / "README.md": readme(introduction, values, comments),
    }


def main() -> None:
    """Write them."""
    _write(generated())
    rendered = manifests()  # with the schema that has just been written
    _write(rendered)
    for path in stale(rendered):
        path.unlink()
        print(f"removed {path.relative_to(CHART.parents[1])}")


def stale(rendered: Mapping[Path, str]) -> list[Path]:
    """Files that look like rendered manifests and are none any more."""
    return [
        path
        for path in sorted(FOLDER.glob("*.yaml"))
        if path not in rendered and path.name not in ("values.yaml", "kustomizeconfig.yaml")
    ]


def _write(texts: Mapping[Path, str]) -> None:
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(CHART.parents[1])}")


if __name__ == "__main__":
    main()
