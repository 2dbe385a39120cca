"""Who may reach the pods, and how long routes keep a request."""

from typing import Any

from serve_app.settings.knobs import Knobs
from serve_app.settings.tree import HttpSettings
from tests.kubernetes.chart import LAPTOP, of_kind, ray_service
from tests.kubernetes.tools import CHART

EVERYTHING = CHART / "ci/everything-values.yaml"
NGINX = "nginx.ingress.kubernetes.io/"
COMPONENTS = {"head", "ingress", "engine"}


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
    assert annotations[f"{NGINX}proxy-body-size"] == str(HttpSettings().max_body_bytes)
    assert "host" not in ingress["spec"]["rules"][0]


def test_a_longer_cold_wait_makes_the_ingress_wait_longer() -> None:
    sets = ["ingress.enabled=true", "models.tiny.autoscaling.cold_wait_timeout_s=1800"]
    [ingress] = of_kind("Ingress", LAPTOP, *sets)
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
    assert ingress["metadata"]["annotations"][f"{NGINX}proxy-body-size"] == "1048576"


def test_a_route_has_no_time_limit() -> None:
    [route] = of_kind("HTTPRoute", EVERYTHING)
    [rule] = route["spec"]["rules"]
    assert rule["timeouts"] == {"request": "0s"}
    assert rule["backendRefs"] == [{"name": "llm-serve-svc", "port": 8000}]
    assert route["spec"]["parentRefs"][0]["name"] == "public"
