"""Mistakes in values that Helm, and mostly the API server, would let through, and pods would never come."""

import json
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from serve_app.cli.application_checks import check_application
from serve_app.cli.config_file import read_config
from serve_app.settings.settings_error import SettingsError
from tests.kubernetes.chart import A100, LAPTOP, documents, refusal, rendered, serve_config
from tests.kubernetes.tools import CHART, helm


@dataclass(frozen=True, slots=True)
class Mistake:
    """Arguments of `--set-json`, and the beginning of what must be said of them."""

    sets: list[str]
    says: str = ""

    def keys(self) -> set[str]:
        """What it is about: CPUs and memory of pods, for one, are compared with each other."""
        keys = [setting.partition("=")[0] for setting in self.sets]
        return {next((about for of, about in TOGETHER if re.match(of, key)), key) for key in keys}


_TABLE = yaml.safe_load((Path(__file__).parent / "mistakes.yaml").read_text(encoding="utf-8"))
MISTAKES: dict[str, list[Mistake]] = {
    kind: [
        Mistake([given] if isinstance(given := each["set"], str) else given, each["says"]) for each in table
    ]
    for kind, table in _TABLE.items()
    if kind not in ("fine", "program")
}


TOGETHER = (
    (r"(app\.ingress|ingressWorkers\.(resources|maxWorkers|minWorkers))\b", "the ingress's sizes"),
    (r"extraVolume(Mount)?s$", "volumes"),
    (r"(priorityClass|engineWorkers\.priorityClassName)\b", "the priority of engines"),
    (r"(nameOverride|fullnameOverride)$", "the name"),
    (r"(preStopSeconds|terminationGracePeriodSeconds)$", "the time to end"),
    (r"models\.qwen-7b\.(autoscaling|max_ongoing_requests)\b", "models.qwen-7b.autoscaling"),
    (
        r"(models\.qwen-7b\.(gpuProfile|(tensor|pipeline)_parallel_size)|gpuProfiles\.a100-80gb)\b",
        "the GPU profile",
    ),
    (r"models\.(tiny|e|other|one|two|bucket)\b", "models.tiny"),
    (r"serviceAccount\b", "models.accounts"),
    (r"(podSecurityContext|securityContext)$", "the user of containers"),
    (r"modelCache\b", "models.cache"),
    (r"tests\.gpuProof\b", "tests.gpuProof"),
)
"""Keys whose values are compared with each other, and what they are about."""


def _together(mistakes: list[Mistake]) -> list[list[Mistake]]:
    """Groups whose keys do not lie within each other: all problems are told at once."""
    groups: list[tuple[set[str], list[Mistake]]] = []
    for mistake in mistakes:
        keys = mistake.keys()
        for taken, group in groups:
            if not any(
                f"{k}.".startswith(f"{o}.") or f"{o}.".startswith(f"{k}.") for k in keys for o in taken
            ):
                taken.update(keys)
                group.append(mistake)
                break
        else:
            groups.append((keys, [mistake]))
    return [group for _, group in groups]


def said_of(kind: str, mistakes: list[Mistake]) -> str:
    sets = [setting for mistake in mistakes for setting in mistake.sets]
    return " ".join(refusal(LAPTOP if kind == "laptop" else A100, *sets).split())


@pytest.mark.parametrize("kind", MISTAKES)
def test_every_mistake_is_refused_with_key_and_bound(kind: str) -> None:
    silent: list[tuple[list[str], str]] = []
    for group in _together(MISTAKES[kind]):
        said = said_of(kind, group)
        silent += [(mistake.sets, said) for mistake in group if mistake.says not in said]
    assert silent == []


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_alone_is_refused_too(kind: str) -> None:
    """One of each kind: together, one might be refused for another's sake."""
    mistake = MISTAKES[kind][0]
    assert mistake.says in said_of(kind, [mistake])


def test_the_program_accepts_what_the_chart_accepts(tmp_path: Path) -> None:
    for group in _together([Mistake([setting]) for setting in _TABLE["fine"]]):
        file = tmp_path / "serve.yaml"
        sets = [setting for fine in group for setting in fine.sets]
        file.write_text(yaml.safe_dump(serve_config(A100, *sets)), encoding="utf-8")
        assert "tideserve" in read_config(file).applications


def test_the_chart_refuses_what_the_program_refuses() -> None:
    for setting in _TABLE["program"]:
        key, _, value = setting.partition("=")
        application = serve_config(LAPTOP)["applications"][0]
        args, knobs = application["args"], application["deployments"][0]["user_config"]
        section, _, name = key.rpartition(".")
        place = {
            "models.tiny": args["models"][0],
            "models.tiny.autoscaling": knobs["autoscaling"]["tideserve-tiny"],
            "app.http": args.setdefault("http", {}),
            "app.request_log": args.setdefault("request_log", {}),
            "app.ingress.autoscaling": knobs["ingress"],
        }[section]
        place[name] = json.loads(value)
        with pytest.raises(SettingsError):
            check_application(application)
    # The schema names all wrong keys at once. Settings that it does not name are sent alone.
    alone = []
    for settings in _with_each_key_once(_TABLE["program"]):
        said = _rendered_with(settings).stderr
        alone += [setting for setting in settings if f"- {setting.partition('=')[0]}" not in said]
    assert [setting for setting in alone if _rendered_with([setting]).returncode == 0] == []


def _with_each_key_once(settings: list[str]) -> Iterable[list[str]]:
    keys: Counter[str] = Counter()
    rounds: defaultdict[int, list[str]] = defaultdict(list)
    for setting in settings:
        key = setting.partition("=")[0]
        rounds[keys[key]].append(setting)
        keys[key] += 1
    return rounds.values()


def _rendered_with(settings: list[str]) -> subprocess.CompletedProcess[str]:
    words = [word for setting in settings for word in ("--set-json", setting)]
    return helm("template", "x", str(CHART), "--values", str(LAPTOP), *words)


EMPTY = [
    "app.http=null",
    "extraEnv=null",
    "head.tolerations=null",
    "ingress.annotations=null",
    "ingressWorkers.nodeSelector=null",
    "monitoring.dashboards.labels=null",
    "monitoring.dashboards.folder=null",
    "networkPolicy.clients=null",
    "podSecurityContext=null",
    "securityContext=null",
]


def test_null_counts_as_empty() -> None:
    documents(CHART / "ci/everything-values.yaml", *EMPTY)


def test_a_name_may_have_45_characters() -> None:
    assert "the name" in refusal(A100, release="r" * 40)
    [head] = [
        found["metadata"]["name"]
        for found in documents(A100, f"fullnameOverride={json.dumps('a' * 45)}")
        if found["kind"] == "ServiceAccount" and found["metadata"]["name"].endswith("-head")
    ]
    assert len(head) == 50


def test_claims_need_a_cluster_that_has_them() -> None:
    claims = 'gpuProfiles.a100-80gb.resourceClaimTemplate="one-gpu"'
    said = refusal(A100, claims, kube_version="1.33.4-gke.1")
    assert "gpuProfiles.a100-80gb.resourceClaimTemplate needs resource.k8s.io/v1" in said
    assert "This is v1.33.4-gke.1" in said
    assert documents(A100, claims, kube_version="1.34.0-gke.1")


def test_a_refused_url_shows_no_password() -> None:
    said = refusal(A100, 'app.ledger={"enabled":true,"url":"postgresql://tide:hunter2@db/usage"}')
    assert "plain text" in said
    assert "hunter2" not in said


SECRET = '{"name":"%s","valueFrom":{"secretKeyRef":{"name":"a","key":"url"}}}'


@pytest.mark.parametrize(
    "sets",
    [
        ("app.ledger.enabled=true", f"extraEnv=[{SECRET % 'TIDESERVE_LEDGER_URL'}]"),
        (
            "app.ledger.enabled=true",
            f"ingressWorkers.env=[{SECRET % 'TIDESERVE_LEDGER_URL'}]",
            f"gpuProfiles.a100-80gb.env=[{SECRET % 'TIDESERVE_LEDGER_URL'}]",
        ),
        ('app.ledger={"enabled":true,"url":"postgresql://tide@db:5432/usage"}',),
        ("app.ledger.enabled=true", 'extraEnvFrom=[{"secretRef":{"name":"urls"}}]'),
        (
            'app.batch={"enabled":true,"files":"file:///shared/batch"}',
            'extraVolumes=[{"name":"shared","persistentVolumeClaim":{"claimName":"shared"}}]',
            'extraVolumeMounts=[{"name":"shared","mountPath":"/shared/"}]',
            f"head.env=[{SECRET % 'TIDESERVE_BATCH_DATABASE_URL'}]",
            f"ingressWorkers.env=[{SECRET % 'TIDESERVE_BATCH_DATABASE_URL'}]",
        ),
        (
            "app.telemetry.traces.enabled=true",
            'extraEnv=[{"name":"OTEL_EXPORTER_OTLP_ENDPOINT","value":"http://a"}]',
        ),
    ],
)
def test_shared_stores_are_accepted(sets: tuple[str, ...]) -> None:
    assert documents(A100, *sets)


def test_a_claim_for_one_node_serves_one_pod() -> None:
    one = [
        "gpuProfiles.cpu.maxWorkers=1",
        "models.tiny.autoscaling.max_replicas=1",
        'modelCache={"type":"pvc","pvc":{"accessMode":"ReadWriteOnce"}}',
    ]
    assert "accessModes: [ReadWriteOnce]" in rendered(LAPTOP, *one)


def test_the_table_has_mistakes_of_every_part_of_the_values() -> None:
    values: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    mistakes = [mistake for kind in MISTAKES.values() for mistake in kind]
    hit = {re.split("[.=]", setting)[0] for mistake in mistakes for setting in mistake.sets}
    assert values.keys() - hit == {"fastDataPath", "initializingTimeoutSeconds"}
