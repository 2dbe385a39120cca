"""What the documents say of the chart is so: commands render, and values exist."""

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kubernetes.chart import A100, ALL_VALUES, documents, of_kind
from tests.kubernetes.tools import CHART, PROJECT, PROMTOOL, helm, needs_promtool
from tests.markdown import INLINE, blocks, prose

KUBERNETES = PROJECT / "docs/kubernetes.md"
DOCUMENTS = [KUBERNETES, PROJECT / "docs/kubernetes-sites.md", PROJECT / "k8s/README.md", CHART / "README.md"]
PLACEHOLDER = "my-values.yaml"
"""The reader's own values in the commands: those of an example here."""


def chart_commands() -> list[tuple[str, ...]]:
    """Arguments of `helm template` for each command of the documents that gives the chart values."""
    found: dict[tuple[str, ...], None] = {}
    for document in (*DOCUMENTS, PROJECT / "README.md"):
        for line in "\n".join(blocks(document, "")).replace("\\\n", " ").splitlines():
            command = line.partition("|")[0].strip()
            if re.match(r"helm (install|upgrade|template) .*helm/tideserve( |$)", command):
                found[tuple(_arguments(shlex.split(command)))] = None
    return list(found)


def _arguments(words: list[str]) -> Iterator[str]:
    values = {"--namespace", "--values", "--set", "--set-json", "--show-only"}
    yield from ("template", words[2], str(CHART))
    options = iter(words[4:])
    for option in options:
        if option == "--create-namespace":
            continue
        assert option in values, f"{' '.join(words)}: what is {option}?"
        given = next(options)
        if option == "--values":
            given = str(A100 if given == PLACEHOLDER else PROJECT / given)
        yield from (option, given)


def test_the_documents_have_commands() -> None:
    assert len(chart_commands()) >= 5


@pytest.mark.parametrize("command", chart_commands(), ids=lambda words: " ".join(words[5:])[-60:])
def test_commands_of_the_documents_render(command: tuple[str, ...]) -> None:
    done = helm(*command)
    assert done.returncode == 0, done.stderr
    for setting in (word for word in command if "=" in word):
        value = setting.partition("=")[2]
        known = value in ("true", "false", "none", "None") or value in done.stdout
        assert known, f"{setting} is nowhere in what it renders"


def test_values_in_the_documents_render_together(tmp_path: Path) -> None:
    known = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    arguments = ["template", "llm", str(CHART), "--values", str(A100), "--kube-version", "1.36.0"]
    count = 0
    for document in DOCUMENTS:
        for block in blocks(document, "yaml"):
            if not yaml.safe_load(block).keys() <= known.keys():
                continue  # another program's
            path = tmp_path / f"{count}.yaml"
            path.write_text(block)
            arguments += ["--values", str(path)]
            count += 1
    assert count > 5
    done = helm(*arguments)
    assert done.returncode == 0, done.stderr


@needs_promtool
def test_prometheus_takes_the_scrape_configuration(tmp_path: Path) -> None:
    config = scrape_configuration()
    del config["scrape_configs"][0]["kubernetes_sd_configs"]  # which Debian's Prometheus is built without
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
    command = [str(PROMTOOL), "check", "config", "--syntax-only", str(tmp_path / "prometheus.yaml")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_scrape_configuration_does_what_the_pod_monitor_does() -> None:
    [job] = scrape_configuration()["scrape_configs"]
    [monitor] = of_kind("PodMonitor", A100)
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    assert job["scrape_interval"] == endpoint["interval"]
    renamed = [{_snake(key): value for key, value in rule.items()} for rule in endpoint["metricRelabelings"]]
    assert job["metric_relabel_configs"] == renamed
    kept = [rule["regex"] for rule in job["relabel_configs"] if rule.get("action") == "keep"]
    labels = monitor["spec"]["selector"]["matchLabels"]
    [nodes] = monitor["spec"]["selector"]["matchExpressions"]
    assert kept == [labels["app.kubernetes.io/part-of"], "|".join(nodes["values"]), endpoint["port"]]
    added = {rule["target_label"] for rule in job["relabel_configs"] if "target_label" in rule}
    targets = {re.sub(r"\W", "_", label) for label in monitor["spec"]["podTargetLabels"]}
    assert added == targets | {"namespace", "pod"}


def scrape_configuration() -> dict[str, Any]:
    """What docs/kubernetes.md gives a Prometheus without the operator."""
    [block] = [block for block in blocks(KUBERNETES, "yaml") if "scrape_configs" in block]
    config: dict[str, Any] = yaml.safe_load(block)
    return config


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])[A-Z]", lambda match: f"_{match[0].lower()}", name)


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_values_that_are_named_exist(document: Path) -> None:
    top = "|".join(yaml.safe_load((CHART / "values.yaml").read_text("utf-8")))
    named = re.compile(rf"({top})(\.[\w*-]+)+(?=$|[:= ])")
    found = [match[0] for name in INLINE.findall(prose(document)) if (match := named.match(name))]
    assert [path for path in found if not _has(path)] == []
    if document == KUBERNETES:
        assert len(found) > 20


def _has(path: str) -> bool:
    """Whether the schema has room for a value; any name stands for a model or a profile."""
    at: Any = _schema()
    for part in path.split("."):
        while "$ref" in at:
            at = _schema()["definitions"][at["$ref"].rpartition("/")[2]]
        properties = at.get("properties", {})
        at = properties[part] if part in properties else at.get("additionalProperties")
        if not isinstance(at, dict):
            return part == "*" and bool(properties)
    return True


@cache
def _schema() -> dict[str, Any]:
    schema: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    return schema


def test_the_table_of_rights_has_every_object_of_the_chart() -> None:
    table = KUBERNETES.read_text(encoding="utf-8").partition("| objects | needed |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (.+?) \| .+? \| (.+?) \|", table, re.M)
    writes = {name for names, verbs in rows if "patch" in verbs for name in re.findall("`(.+?)`", names)}
    made = set()
    for document in (each for values in ALL_VALUES for each in documents(values)):
        group = document["apiVersion"].rpartition("/")[0]
        kind = document["kind"].lower()
        plural = (
            f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}es" if kind.endswith("s") else f"{kind}s"
        )
        made.add(f"{plural}.{group}".rstrip("."))
    made.add("secrets")  # with apiKeys.entries, and for Helm's own notes of releases
    assert made == writes
