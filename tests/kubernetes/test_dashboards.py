import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any, get_args

import pytest

from serve_app.api.engine_client import OUTCOMES
from serve_app.policy.decide import IDLE, ClampName
from serve_app.settings.knobs import Knobs
from tests.kubernetes.dashboards_queries import FOLDER, PRICE_PLACEHOLDER, DashboardQuery, documents, queries
from tests.kubernetes.exported_series import MAKERS, bounds, exported, where_metrics_are_made
from tests.kubernetes.promql_labels import Labels, labels_of
from tests.kubernetes.tools import PROJECT

DOCUMENTS = documents()
QUERIES = queries()
UNITS = {"short", "none", "s", "percentunit", "percent", "reqps", "mbytes"}
KINDS = {"row", "stat", "timeseries", "state-timeline", "bargauge"}
KNOBS = Knobs()
TO_EITHER_GROUND = 3.0
"""Contrast of a line, by WCAG 2.2, 1.4.11."""


@pytest.fixture(scope="module")
def series() -> dict[str, Labels]:
    return exported()


def panels(*kinds: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, document in DOCUMENTS.items():
        for panel in document["panels"]:
            if not kinds or panel["type"] in kinds:
                yield f"{name}: {panel['title']}", panel


def shown() -> Iterator[tuple[str, dict[str, Any]]]:
    return panels(*KINDS - {"row"})


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_a_query_names_only_series_and_labels_there_are(
    query: DashboardQuery, series: dict[str, Labels]
) -> None:
    assert "$" not in query.expr
    found = labels_of(query.expr, series)
    named = set(re.findall(r"\{\{(\w+)\}\}", query.legend))

    assert named <= found, "the legend names a label that the series do not have"
    # Two series of one name could not be told apart. A pod has one instance.
    assert found - {"instance"} <= named


def test_a_query_for_an_unknown_series_is_refused(series: dict[str, Labels]) -> None:
    for wrong, why in (
        ("llm_nothing", "no such series"),
        ('llm_steps_total{pods="x"}', "no label pods"),
        ("sum by (term) (llm_steps_total)", "no label term"),
        ("sum by (model) (llm_steps_total) / sum(llm_steps_total)", "never meets"),
        ("sum by (model) (llm_steps_total) * on (replica) llm_steps_total", "not on both sides"),
        ("histogram_quantile(0.5, sum by (model) (llm_ttft_seconds_bucket))", "without le"),
    ):
        with pytest.raises(AssertionError, match=why):
            labels_of(wrong, series)
    with pytest.raises(ValueError, match="unclosed"):
        labels_of("sum(", series)


def test_every_place_that_makes_metrics_is_known() -> None:
    assert where_metrics_are_made(PROJECT) == MAKERS


def test_a_bucket_that_is_asked_for_by_its_bound_exists() -> None:
    asked = {
        (name, le) for q in QUERIES for name, le in re.findall(r'(llm_\w+)_bucket\{[^}]*le="([^"]+)"', q.expr)
    }

    assert {name for name, _ in asked} == {"llm_user_ttft_seconds", "llm_inter_token_seconds"}
    for name, le in asked:
        assert le in {str(bound) for bound in bounds()[name]}


def test_models_and_namespaces_are_chosen_wherever_a_series_has_them() -> None:
    for name, document in DOCUMENTS.items():
        for panel in document["panels"]:
            for target in panel.get("targets", ()):
                for series_name, matchers in re.findall(
                    r"((?:llm|ray)_\w+)(\{[^}]*\})?(?=[\s\[)]|$)", target["expr"]
                ):
                    assert 'namespace=~"$namespace"' in matchers, (name, panel["title"], series_name)
                    without_model = {"llm_autoscaling_policy_errors_total", "llm_rate_limited_total"}
                    by_model = series_name.startswith("llm_") and series_name not in without_model
                    assert ('model=~"$model"' in matchers) == by_model, (name, panel["title"], series_name)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_panels_lie_side_by_side_and_under_each_other(name: str) -> None:
    places = [(panel["title"], panel["gridPos"]) for panel in DOCUMENTS[name]["panels"]]

    for title, at in places:
        assert at["w"] > 0, title
        assert at["h"] > 0, title
        assert 0 <= at["x"] <= 24 - at["w"], title
    for (one, a), (other, b) in combinations(places, 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        above = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert beside or above, f"{one} lies over {other}"
    filled = {(y, x) for _, at in places for y in range(at["y"], at["y"] + at["h"]) for x in (at["x"],)}
    assert {y for y, _ in filled} == set(range(max(y for y, _ in filled) + 1)), "an empty line"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_dashboard_is_one_grafana_can_load(name: str) -> None:
    document = DOCUMENTS[name]
    ids = [panel["id"] for panel in document["panels"]]

    assert document["uid"] == f"tideserve-{name}"
    assert len(document["uid"]) <= 40
    assert document["schemaVersion"] >= 39
    assert len(set(ids)) == len(ids)
    assert document["refresh"] == ("1m" if name == "cost" else "10s")
    assert document["tags"] == ["tideserve"]
    assert [v["name"] for v in document["templating"]["list"]][:3] == ["datasource", "namespace", "model"]
    assert document["panels"][0]["type"] == "stat"


def test_every_model_has_its_own_rows_of_scaling() -> None:
    rows = [panel for panel in DOCUMENTS["autoscaling"]["panels"] if panel["type"] == "row"]

    # Grafana repeats what follows a row up to the next: it has to be the last.
    assert [row.get("repeat") for row in rows] == [None, "model"]


@pytest.mark.parametrize(("title", "panel"), list(shown()), ids=[title for title, _ in shown()])
def test_a_panel_says_what_it_is(title: str, panel: dict[str, Any]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    legends = [target["legendFormat"] for target in panel["targets"]]
    steps = [step["value"] for step in defaults["thresholds"]["steps"]]

    assert panel["type"] in KINDS
    assert panel["description"].endswith(".")
    assert len(panel["description"]) >= 20
    assert len(panel["title"]) <= 34
    assert defaults["unit"] in UNITS or re.fullmatch(r"(si|suffix):\S+", defaults["unit"])
    assert defaults["noValue"]
    assert steps[0] is None
    assert steps[1:] == sorted(steps[1:])
    assert all(legends)
    assert len(set(legends)) == len(legends)
    assert len({target["refId"] for target in panel["targets"]}) == len(legends)
    assert all(target["datasource"]["uid"] == "${datasource}" for target in [panel, *panel["targets"]])
    if panel["type"] == "stat":
        assert len(legends) == 1


def coloured() -> Iterator[tuple[str, dict[str, Any], str, str]]:
    """Title, panel, series and colour wherever a series has a colour of its own."""
    for title, panel in shown():
        for override in panel["fieldConfig"]["overrides"]:
            for found in override["properties"]:
                if found["id"] == "color":
                    yield title, panel, override["matcher"]["options"], found["value"]["fixedColor"]


def terms_with_a_colour() -> set[str]:
    return {name for title, _, name, _ in coloured() if title == "autoscaling: What set the target"}


def test_what_can_set_a_target_has_a_colour() -> None:
    terms = (PROJECT / "serve_app/policy/decide.py").read_text("utf-8")
    named = set(re.findall(r'Term\(\s*"(\w+)"', terms))
    # Bounds bind by the names of their knobs.
    clamps = set(get_args(ClampName)) - {"bounds"}

    assert named >= {"demand", "queue", "awake", "schedule"}
    assert terms_with_a_colour() == named | clamps | {"min_replicas", "max_replicas", IDLE.name}


def test_every_outcome_of_a_request_has_a_colour() -> None:
    assert {name for _, _, name, _ in coloured()} >= set(OUTCOMES)


def test_colours_have_contrast_on_light_and_dark() -> None:
    used = {colour for _, _, _, colour in coloured()} - {"text"}

    assert len(used) > 5
    for colour in used:
        for ground in ("#ffffff", "#181b1f"):
            assert contrast(colour, ground) >= TO_EITHER_GROUND, f"{colour} on {ground}"


def contrast(one: str, other: str) -> float:
    """WCAG 2.2's contrast ratio of two colours."""
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize(
    ("titles", "target"),
    [
        (
            ("service: TTFT, warm", "service: TTFT P95 by model", "service: Parts of TTFT, P95"),
            Knobs().ttft_target_s,
        ),
        (("service: ITL", "service: ITL P95 by model", "engine: Step time"), Knobs().itl_target_s),
    ],
)
def test_a_line_is_where_the_target_is(titles: tuple[str, ...], target: float) -> None:
    found = dict(shown())
    for title in titles:
        defaults = found[title]["fieldConfig"]["defaults"]
        assert [step["value"] for step in defaults["thresholds"]["steps"]] == [None, target], title
        assert defaults["custom"]["thresholdsStyle"] == {"mode": "dashed"}


def test_the_price_is_left_for_the_chart_to_fill_in() -> None:
    for path in FOLDER.iterdir():
        assert (PRICE_PLACEHOLDER in path.read_text("utf-8")) == (path.name == "cost.json")
    price = DOCUMENTS["cost"]["templating"]["list"][-1]

    assert price["type"] == "textbox"
    assert price["query"] == price["current"]["value"] == price["options"][0]["value"] == PRICE_PLACEHOLDER
