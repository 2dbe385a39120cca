"""The numbers panels show, by Prometheus's own evaluation of their queries."""

import subprocess
from pathlib import Path

import yaml

from tests.kubernetes.dashboards_cases import CASES, SCRAPE_S, Case
from tests.kubernetes.dashboards_queries import queries
from tests.kubernetes.tools import PROMTOOL, needs_promtool


def promtool_test(case: Case) -> dict[str, object]:
    """As `promtool test rules` reads it. It compares exactly, so both sides are rounded to 1/1024."""
    exprs = {
        (q.dashboard, q.place, "" if q.place.startswith("annotation") else q.legend): q.expr
        for q in queries(case.values)
    }
    return {
        "interval": f"{SCRAPE_S}s",
        "input_series": [{"series": name, "values": course} for name, course in case.series.items()],
        "promql_expr_test": [
            {
                "expr": f"round(1024 * ({exprs[place]}))",
                "eval_time": f"{case.at_s}s",
                "exp_samples": [
                    {"labels": labels, "value": round(1024 * value)} for labels, value in found.items()
                ],
            }
            for place, found in case.shows.items()
        ],
    }


@needs_promtool
def test_panels_show_what_was_worked_out_by_hand(tmp_path: Path) -> None:
    file = tmp_path / "dashboards.yaml"
    file.write_text(
        yaml.safe_dump(
            {"rule_files": [], "evaluation_interval": "15s", "tests": [promtool_test(case) for case in CASES]}
        )
    )

    done = subprocess.run(
        [str(PROMTOOL), "test", "rules", file], check=False, capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 0, done.stdout + done.stderr
