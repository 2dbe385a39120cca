"""The chart's recording rules and alerts: valid, tested one by one, each alert with its runbook."""

import re
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.dashboard.modules.reporter.reporter_agent import METRICS_GAUGES

from tests.kubernetes.chart import LAPTOP, of_kind
from tests.kubernetes.tools import AMTOOL, CHART, PROJECT, PROMTOOL, needs_amtool, needs_promtool

RULE_TESTS = sorted((Path(__file__).parent / "rules").glob("*.yaml"))
ALERTMANAGER = CHART / "files/alertmanager-example.yaml"
ENABLED = "monitoring.prometheusRule.enabled=true"
RECORDED = r"model(_cold|_outcome|_state)?:llm_\w+:(sum|max|((ratio|p\d\d)_)?rate\d+m)"
RAYS_OWN = {"ray_node_gpus_utilization"}


def prometheus_rule(*sets: str) -> dict[str, Any]:
    """The one PrometheusRule of the release `tide` in the namespace `llm`."""
    [found] = of_kind("PrometheusRule", LAPTOP, ENABLED, *sets, release="tide")
    return found


def rules(*sets: str) -> list[dict[str, Any]]:
    return [rule for group in prometheus_rule(*sets)["spec"]["groups"] for rule in group["rules"]]


def alerts() -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def written(folder: Path, *sets: str) -> Path:
    """The rules as a file that Prometheus loads."""
    path = folder / "rules.yaml"
    path.write_text(yaml.safe_dump(prometheus_rule(*sets)["spec"]))
    return path


def run(*command: str | Path) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def selectors(expression: str) -> list[tuple[str, str]]:
    """The series an expression reads, each with its matchers."""
    return re.findall(r"((?:[a-z]\w*:)?(?:llm|ray)_[a-z0-9_]+(?::\w+)?|)\{(.*?)\}", expression)


@needs_promtool
@pytest.mark.parametrize("selector", ["null", '""', '"job=\\"llm/tide\\", cluster=\\"eu\\""'])
def test_promtool_accepts_the_rules(tmp_path: Path, selector: str) -> None:
    assert PROMTOOL is not None
    path = written(tmp_path, f"monitoring.prometheusRule.selector={selector}")

    said = run(PROMTOOL, "check", "rules", path)

    assert f"{len(rules())} rules found" in said


@needs_promtool
def test_rules_pass_their_promtool_tests(tmp_path: Path) -> None:
    assert PROMTOOL is not None
    written(tmp_path)
    for path in RULE_TESTS:
        (tmp_path / path.name).write_text(path.read_text())

    run(PROMTOOL, "test", "rules", *(tmp_path / path.name for path in RULE_TESTS))


def test_every_alert_is_tested_firing_and_silent() -> None:
    seen: dict[str, set[bool]] = defaultdict(set)
    for path in RULE_TESTS:
        for case in yaml.safe_load(path.read_text())["tests"]:
            for check in case.get("alert_rule_test", ()):
                seen[check["alertname"]].add(bool(check["exp_alerts"]))

    assert seen == {name: {True, False} for name in alerts()}


def test_every_alert_has_its_page_and_every_page_its_alert() -> None:
    pages = re.findall(r"^## (Tideserve\w+)$", (PROJECT / "docs/runbooks.md").read_text(), re.MULTILINE)

    assert pages == list(alerts())
    for name, alert in alerts().items():
        assert alert["annotations"]["runbook_url"] == f"docs/runbooks.md#{name.lower()}"


def test_runbook_links_begin_with_the_given_base() -> None:
    base = "https://wiki.example/runbooks.md"

    links = [
        rule["annotations"]["runbook_url"]
        for rule in rules(f'monitoring.prometheusRule.runbookBase="{base}"')
        if "alert" in rule
    ]

    assert links == [f"{base}#{name.lower()}" for name in alerts()]


def test_an_alert_has_severity_description_and_release() -> None:
    for alert in alerts().values():
        assert alert["labels"]["severity"] in ("page", "ticket")
        assert alert["labels"]["release"] == "llm/tide"
        assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}
        assert "llm/tide" in " ".join(alert["annotations"].values())
        assert alert["annotations"]["description"].endswith((".", "time."))


def test_recorded_series_are_named_by_level_metric_and_operation() -> None:
    for rule in rules():
        if "record" in rule:
            assert re.fullmatch(RECORDED, rule["record"])
            assert rule["labels"] == {"release": "llm/tide"}


def test_every_series_a_rule_reads_exists() -> None:
    documented = set(re.findall(r"`(llm_[a-z0-9_]+)`", (PROJECT / "docs/api.md").read_text()))
    known = documented | {f"{name}_bucket" for name in documented} | RAYS_OWN
    known |= {rule["record"] for rule in rules() if "record" in rule}
    for name in RAYS_OWN:
        assert name.removeprefix("ray_") in METRICS_GAUGES

    for rule in rules():
        read = {name for name, _ in selectors(rule["expr"]) if name}
        read |= set(re.findall(r"llm_held_requests|llm_queue_depth", rule["expr"]))
        assert read
        assert read <= known, rule["expr"]


@pytest.mark.parametrize(
    ("selector", "wanted"), [("null", 'namespace="llm"'), ('"job=\\"llm/tide\\""', 'job="llm/tide"')]
)
def test_rules_read_no_other_release(selector: str, wanted: str) -> None:
    for rule in rules(f"monitoring.prometheusRule.selector={selector}"):
        for name, matchers in selectors(rule["expr"]):
            recorded = ":" in name
            assert ('release="llm/tide"' if recorded else wanted) in matchers, rule["expr"]


def test_a_plain_prometheus_may_do_without_a_selector() -> None:
    assert not any("namespace=" in rule["expr"] for rule in rules('monitoring.prometheusRule.selector=""'))


def test_every_threshold_can_be_set() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())["monitoring"]["prometheusRule"]["thresholds"]
    given = {name: 3 + index for index, name in enumerate(values)}
    given |= {"error_ratio": 0.111, "rejected_ratio": 0.222}
    sets = [f"monitoring.prometheusRule.thresholds.{name}={value}" for name, value in given.items()]

    expressions = " ".join(rule["expr"] for rule in rules(*sets) if "alert" in rule)

    for name, value in given.items():
        assert re.search(rf"(>=?|==|on \(namespace, model\)) {re.escape(str(value))}\b", expressions), name


def test_given_labels_are_on_the_rule_object() -> None:
    metadata = prometheus_rule('monitoring.prometheusRule.labels={"release":"kube-prometheus"}')["metadata"]

    assert metadata["labels"]["release"] == "kube-prometheus"
    assert metadata["labels"]["app.kubernetes.io/instance"] == "tide"


def test_without_the_switch_there_is_no_rule() -> None:
    assert of_kind("PrometheusRule", LAPTOP, release="tide") == []


# Alertmanager.


@needs_amtool
def test_amtool_accepts_the_alertmanager_example() -> None:
    assert AMTOOL is not None

    assert "SUCCESS" in run(AMTOOL, "check-config", ALERTMANAGER)


@needs_amtool
@pytest.mark.parametrize("severity", ["page", "ticket", "other"])
def test_pages_go_to_on_call_and_other_alerts_to_tickets(severity: str) -> None:
    assert AMTOOL is not None
    receiver = "on-call" if severity == "page" else "tickets"
    labels = [f"severity={severity}", "release=llm/tide", "namespace=llm", "model=tide"]
    name = next(
        (name for name, alert in alerts().items() if alert["labels"]["severity"] == severity), "Other"
    )
    command = [AMTOOL, "config", "routes", "test", f"--config.file={ALERTMANAGER}"]

    said = run(*command, f"--verify.receivers={receiver}", f"alertname={name}", *labels)

    assert said.strip() == receiver


def test_only_pages_inhibit_other_alerts() -> None:
    def matching(matchers: list[str]) -> set[str]:
        [pattern] = [re.fullmatch(r'alertname=~?"(.+)"', matcher) for matcher in matchers]
        assert pattern is not None
        return set(pattern[1].split("|"))

    severity = {name: alert["labels"]["severity"] for name, alert in alerts().items()}
    inhibitions = yaml.safe_load(ALERTMANAGER.read_text())["inhibit_rules"]
    assert inhibitions
    for rule in inhibitions:
        sources, targets = matching(rule["source_matchers"]), matching(rule["target_matchers"])
        assert sources | targets <= set(severity)
        assert not sources & targets
        assert {severity[name] for name in sources} == {"page"}
        assert {"release", "namespace"} <= set(rule["equal"])


def test_secrets_come_from_files() -> None:
    receivers = yaml.safe_load(ALERTMANAGER.read_text())["receivers"]
    secrets = {"routing_key", "service_key", "api_url", "password", "token", "url"}

    for receiver in receivers:
        for configs in (value for key, value in receiver.items() if key.endswith("_configs")):
            for config in configs:
                assert not secrets & set(config)
                assert {"routing_key_file", "api_url_file"} & set(config)
