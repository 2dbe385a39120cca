"""Rights, budgets, labels, monitoring, routes and the chart as a part of another."""

import json
import re
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from serve_app.api.upload import MOST_ENVELOPE_BYTES
from serve_app.settings.keys_file import ApiKey, parse_keys
from serve_app.settings.knobs import Knobs
from serve_app.settings.storage import BatchSettings
from serve_app.settings.tree import HttpSettings
from tests.kubernetes import kubernetes_api
from tests.kubernetes.chart import ALL_VALUES, LAPTOP, documents, of_kind, ray_service, serve_config
from tests.kubernetes.tools import CHART, helm

EVERYTHING = CHART / "ci/everything-values.yaml"
HOST_PATH = CHART / "ci/host-path-values.yaml"
NGINX = "nginx.ingress.kubernetes.io/"
COMPONENTS = {"head", "ingress", "engine"}


def test_only_the_head_has_rights() -> None:
    [role] = of_kind("Role", LAPTOP)
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    [binding] = of_kind("RoleBinding", LAPTOP)
    [subject] = binding["subjects"]
    assert (subject["name"], subject["namespace"]) == ("demo-tideserve-head", "llm")
    kinds = {found["kind"] for values in ALL_VALUES for found in documents(values)}
    assert not kinds & {"ClusterRole", "ClusterRoleBinding"}


def test_rights_and_accounts_can_be_turned_off() -> None:
    accounts = {found["metadata"]["name"]: found for found in of_kind("ServiceAccount", LAPTOP)}
    assert accounts["demo-tideserve-worker"]["automountServiceAccountToken"] is False
    kinds = {found["kind"] for found in documents(HOST_PATH)}
    assert not kinds & {"ServiceAccount", "Role", "RoleBinding"}


def budgets(*sets: str) -> dict[str, dict[str, Any]]:
    """Specifications of the budgets by worker group."""
    found = of_kind("PodDisruptionBudget", LAPTOP, *sets)
    return {each["spec"]["selector"]["matchLabels"]["ray.io/group"]: each["spec"] for each in found}


@pytest.mark.parametrize("keep", [1, 2])
def test_no_value_blocks_a_drain(keep: int) -> None:
    """The operator keeps the number of pods of a running cluster, and the budget is there at once."""

    def sets(pods: int, keep: int) -> tuple[str, ...]:
        groups = (f"{group}.minWorkers={pods}" for group in ("ingressWorkers", "gpuProfiles.cpu"))
        return (*groups, f"podDisruptionBudget.minAvailable={keep}")

    for before, (index, name) in product(range(1, 4), enumerate(("ingress", "cpu"))):
        running = ray_service(LAPTOP, *sets(before, keep))["spec"]["rayClusterConfig"]["workerGroupSpecs"][
            index
        ]
        labels = {**running["template"]["metadata"]["labels"], "ray.io/group": name}
        own = budgets(*sets(before, keep)).get(name)
        assert (own is not None) is (before > keep)
        assert own is None or own["selector"]["matchLabels"].items() <= labels.items()
        for after, least in product(range(1, 4), (1, 2)):
            spec = budgets(*sets(after, least)).get(name)
            if spec and spec["selector"]["matchLabels"].items() <= labels.items():
                assert running["replicas"] > spec["minAvailable"]
                assert "maxUnavailable" not in spec  # which Kubernetes cannot count for a RayCluster


def test_budgets_can_be_turned_off() -> None:
    sets = ("ingressWorkers.minWorkers=3", "podDisruptionBudget.enabled=false")
    assert budgets(*sets) == {}
    assert "tideserve/budget" not in str(ray_service(LAPTOP, *sets))


def test_common_labels_are_on_every_object_and_pod() -> None:
    """Policies of a cluster ask for them, and Kueue for one of its own on the RayService."""
    for found in documents(EVERYTHING, "extraObjects=[]"):
        every = [found["metadata"]]
        if found["kind"] == "Job":
            every.append(found["spec"]["template"]["metadata"])
        if found["kind"] == "RayService":
            cluster = found["spec"]["rayClusterConfig"]
            groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
            every += [group["template"]["metadata"] for group in groups]
            assert found["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
            assert found["metadata"]["annotations"]["example.org/note"] == "yes"
        for index, metadata in enumerate(every):
            assert metadata["labels"]["team"] == "inference"
            assert metadata["annotations"]["example.org/owner"] == "inference"
            assert (metadata["labels"].get("example.org/billing") == "llm") is (index > 0)
            assert (metadata["annotations"].get("example.org/scrape") == "no") is (index > 0)
        assert (found["metadata"].get("namespace") == "llm") is (found["kind"] != "PriorityClass")


def test_the_priority_class_is_the_one_that_engines_use() -> None:
    [created] = of_kind("PriorityClass", EVERYTHING)
    engines = ray_service(EVERYTHING)["spec"]["rayClusterConfig"]["workerGroupSpecs"][1]["template"]["spec"]
    assert created["metadata"]["name"] == engines["priorityClassName"]


def test_scraped_series_lose_rays_prefix() -> None:
    [monitor] = of_kind("PodMonitor", EVERYTHING)
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    [relabeling] = endpoint["metricRelabelings"]
    name = re.fullmatch(relabeling["regex"], "ray_llm_ttft_seconds_bucket")
    assert name is not None
    assert name.expand(relabeling["replacement"].replace("$", "\\")) == "llm_ttft_seconds_bucket"
    assert re.fullmatch(relabeling["regex"], "ray_serve_num_ongoing_requests") is None
    ports = ray_service(EVERYTHING)["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]
    assert endpoint["port"] in [port["name"] for port in ports["containers"][0]["ports"]]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"


def test_dashboards_are_the_files_with_the_price_in_them() -> None:
    maps = of_kind("ConfigMap", EVERYTHING, "monitoring.dashboards.gpuHourPrice=3.25")
    dashboards = {
        next(iter(found["data"])): found for found in maps if "dashboard" in found["metadata"]["name"]
    }
    # Grafana's sidecar makes files of the keys, all in one folder, and ours are not the only ones.
    names = {name.rpartition("-")[0] for name in dashboards}
    assert names == {f"tideserve-{path.stem}" for path in CHART.glob("files/dashboards/*.json")}
    for name, found in dashboards.items():
        uid = name.rpartition("-")[0]
        file = CHART / f"files/dashboards/{uid.removeprefix('tideserve-')}.json"
        text = file.read_text(encoding="utf-8").replace(f'"uid": "{uid}"', f'"uid": "{Path(name).stem}"')
        assert found["data"][name] == text.strip().replace("__GPU_HOUR_PRICE__", "3.25")
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert found["metadata"]["annotations"]["grafana_folder"] == "Tideserve"


def test_names_that_look_like_numbers_stay_text() -> None:
    names = [
        'apiKeys={"existingSecret":"12","key":"1e3"}',
        'huggingFaceToken={"existingSecret":"0x1f","key":"true"}',
        'head.priorityClassName="12"',
        'modelCache.pvc={"existingClaim":"null"}',
        'ingress.className="123"',
    ]
    cluster = ray_service(EVERYTHING, *names, release="123")["spec"]["rayClusterConfig"]
    for group in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]:
        pod = {"apiVersion": "v1", "kind": "Pod", **group["template"]}
        assert kubernetes_api.problems(pod, "1.36") == []
    for found in documents(EVERYTHING, *names, release="123"):
        if found["apiVersion"].split("/")[0] in ("v1", "batch", "networking.k8s.io", "policy"):
            assert kubernetes_api.problems(found, "1.36") == []


def test_entries_of_api_keys_become_a_secret_that_the_server_reads() -> None:
    entry = {
        "name": "web",
        "hash": "sha256:" + "0" * 64,
        "lane": "interactive",
        "weight": 2.5,
        "tokens_per_minute": 10_000_000,
        "models": ["qwen-*"],
        "expires": "2027-01-31T00:00:00Z",
        "metadata": {"team": "shop"},
        "team": "shop",
        "budget": {"usd": 30.5, "per": "month", "timezone": "Europe/Berlin"},
    }
    teams = {"shop": {"budget": {"usd": 2_000_000, "per": "week"}}}
    sets = ("apiKeys.entries=" + json.dumps([entry]), "apiKeys.teams=" + json.dumps(teams))
    [secret] = of_kind("Secret", LAPTOP, *sets)
    found = parse_keys(secret["stringData"]["api-keys"].encode())
    assert found.keys == (ApiKey.model_validate(entry),)
    assert found.budgets["team/shop"].usd == 2_000_000
    args = serve_config(LAPTOP, *sets)["applications"][0]["args"]
    assert args["http"]["api_keys_file"] == "/etc/tideserve/secrets/api-keys"
    assert of_kind("Secret", LAPTOP) == []


def test_extra_objects_are_templates() -> None:
    names = [found["metadata"]["name"] for found in of_kind("ConfigMap", EVERYTHING)]
    assert "llm-note" in names


def _policy(*sets: str) -> dict[str, Any]:
    [policy] = of_kind("NetworkPolicy", LAPTOP, *sets)
    return dict(policy["spec"])


def _sources(policy: dict[str, Any], port: int) -> list[Any]:
    """Who may come to `port` from outside; None is everybody."""
    rules = [rule for rule in policy["ingress"] if port in [item["port"] for item in rule.get("ports", ())]]
    return [rule.get("from") for rule in rules]


def test_the_network_policy_covers_every_pod() -> None:
    policy = _policy()
    cluster = ray_service(LAPTOP)["spec"]["rayClusterConfig"]
    for group in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]:
        labels = group["template"]["metadata"]["labels"]
        assert policy["podSelector"]["matchLabels"].items() <= labels.items()
        assert labels["app.kubernetes.io/component"] in COMPONENTS
    assert policy["policyTypes"] == ["Ingress"]
    assert of_kind("NetworkPolicy", LAPTOP, "networkPolicy.enabled=false") == []


def test_only_pods_of_ray_reach_every_port() -> None:
    [everywhere] = [rule for rule in _policy()["ingress"] if "ports" not in rule]
    [peer] = everywhere["from"]
    [only] = peer["podSelector"]["matchExpressions"]
    assert set(only["values"]) == COMPONENTS


def test_only_the_operator_reaches_the_dashboard() -> None:
    [[operator]] = _sources(_policy(), 8265)
    assert operator["podSelector"]["matchLabels"]


def test_named_clients_alone_may_send_requests() -> None:
    assert None in _sources(_policy(), 8000)
    named = _sources(_policy('networkPolicy.clients=[{"podSelector":{}}]'), 8000)
    assert None not in named
    components = [
        peer["podSelector"].get("matchLabels", {}).get("app.kubernetes.io/component")
        for peers in named
        for peer in peers
    ]
    assert "test" in components


def test_without_monitoring_nobody_scrapes() -> None:
    assert _sources(_policy("networkPolicy.monitoring=[]"), 8080) == []


def test_egress_allows_dns_pods_and_given_rules() -> None:
    policy = _policy('networkPolicy.egress={"enabled":true,"to":[{"ports":[{"port":443}]}]}')
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    ports = [tuple(item["port"] for item in rule.get("ports", ())) for rule in policy["egress"]]
    assert ports == [(), (53, 53), (443,)]


def test_an_ingress_neither_times_out_nor_buffers() -> None:
    [ingress] = of_kind("Ingress", LAPTOP, "ingress.enabled=true", "app.drain_timeout_s=700")
    annotations = ingress["metadata"]["annotations"]
    longest = Knobs().cold_wait_timeout_s + 700
    assert int(annotations[f"{NGINX}proxy-read-timeout"]) >= longest
    assert int(annotations[f"{NGINX}proxy-send-timeout"]) >= longest
    assert annotations[f"{NGINX}proxy-buffering"] == "off"
    assert annotations[f"{NGINX}proxy-body-size"] == str(HttpSettings().max_body_bytes + MOST_ENVELOPE_BYTES)


def test_files_of_batches_pass_the_ingress_in_their_form() -> None:
    """A file may have 200 MiB, and its form an envelope."""
    batch = '{"enabled":true,"database":"postgresql://tide@db/batch","files":"s3://bucket/batch"'
    for more, most in (("}", BatchSettings().max_file_bytes), (',"max_file_bytes":1048576}', 8 << 20)):
        [ingress] = of_kind("Ingress", LAPTOP, "ingress.enabled=true", f"app.batch={batch}{more}")
        size = ingress["metadata"]["annotations"][f"{NGINX}proxy-body-size"]
        assert size == str(most + MOST_ENVELOPE_BYTES)
    assert "host" not in ingress["spec"]["rules"][0]
    slow = "models.tiny.autoscaling.cold_wait_timeout_s=1800"
    [ingress] = of_kind("Ingress", LAPTOP, "ingress.enabled=true", slow)
    assert int(ingress["metadata"]["annotations"][f"{NGINX}proxy-read-timeout"]) >= 1860


def test_given_annotations_win() -> None:
    own = f'ingress={{"enabled":true,"annotations":{{"{NGINX}proxy-buffering":"on","a":"b"}}}}'
    [ingress] = of_kind("Ingress", LAPTOP, own)
    annotations = ingress["metadata"]["annotations"]
    assert annotations[f"{NGINX}proxy-buffering"] == "on"
    assert annotations["a"] == "b"
    assert f"{NGINX}proxy-read-timeout" in annotations


def test_an_ingress_goes_to_the_operators_service_for_each_host() -> None:
    [ingress] = of_kind("Ingress", EVERYTHING)
    [rule] = ingress["spec"]["rules"]
    assert rule["host"] == "llm.example.org"
    [path] = rule["http"]["paths"]
    assert path["backend"]["service"] == {"name": "llm-serve-svc", "port": {"number": 8000}}
    assert ingress["metadata"]["annotations"][f"{NGINX}proxy-body-size"] == str(1048576 + MOST_ENVELOPE_BYTES)


def test_a_route_has_no_time_limit() -> None:
    [route] = of_kind("HTTPRoute", EVERYTHING)
    [rule] = route["spec"]["rules"]
    assert rule["timeouts"] == {"request": "0s"}
    assert rule["backendRefs"] == [{"name": "llm-serve-svc", "port": 8000}]
    assert route["spec"]["parentRefs"][0]["name"] == "public"


@pytest.mark.parametrize(
    ("condition", "parent"),
    [
        ("tideserve.enabled", {"tideserve": {"enabled": True}}),
        ("global.llm", {"global": {"llm": True, "region": "eu"}, "tideserve": {}}),
        ("features.llm,tideserve.enabled", {"features": {"llm": True}, "tideserve": {}}),
    ],
)
def test_the_chart_is_a_subchart_under_a_condition(
    tmp_path: Path, condition: str, parent: dict[str, Any]
) -> None:
    shutil.copytree(CHART, tmp_path / "charts/tideserve")
    dependency = {"name": "tideserve", "version": "0.1.0", "condition": condition}
    chart = {"apiVersion": "v2", "name": "platform", "version": "1.0.0", "dependencies": [dependency]}
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump(chart))
    values = yaml.safe_dump({**parent, "tideserve": yaml.safe_load(LAPTOP.read_text()) | parent["tideserve"]})
    for on in (True, False):
        text = values if on else re.sub(r"\b(llm|enabled): true$", r"\1: false", values, flags=re.MULTILINE)
        (tmp_path / "values.yaml").write_text(text)
        done = helm("template", "x", str(tmp_path))
        assert done.returncode == 0, done.stderr
        assert ("kind: RayService" in done.stdout) is on


def test_two_releases_share_no_dashboard() -> None:
    found = []
    for release in ("one", "two"):
        maps = of_kind("ConfigMap", LAPTOP, "monitoring.dashboards.enabled=true", release=release)
        files = {name: json.loads(text) for each in maps for name, text in each["data"].items()}
        assert len(files) == 4
        for name, document in files.items():
            assert name == f"{document['uid']}.json"
            assert len(document["uid"]) <= 40
        found.append(set(files))
    assert found[0].isdisjoint(found[1])
