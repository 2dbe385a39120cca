"""Which dashboards there are, and the files they become."""

from __future__ import annotations

import json
from pathlib import Path

from tools.dashboards import autoscaling, cost, engine, service
from tools.dashboards.dashboard import Dashboard

DASHBOARDS: tuple[Dashboard, ...] = (
    service.DASHBOARD,
    autoscaling.DASHBOARD,
    engine.DASHBOARD,
    cost.DASHBOARD,
)
FOLDER = Path(__file__).parents[2] / "helm/tideserve/files/dashboards"


def contents() -> dict[str, str]:
    """What each file holds, by its name."""
    return {
        f"{dashboard.name}.json": json.dumps(dashboard.document(), indent=1, ensure_ascii=False) + "\n"
        for dashboard in DASHBOARDS
    }


def write(folder: Path = FOLDER) -> None:
    """Write all of them, and remove what is of none."""
    files = contents()
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.json"):
        if old.name not in files:
            old.unlink()
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
