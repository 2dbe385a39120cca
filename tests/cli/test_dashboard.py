import json
import socket
from typing import Any

import pytest
from ray.serve._private.deploy_utils import get_app_code_version
from ray.serve.schema import ServeDeploySchema

from serve_app.cli import CommandError
from serve_app.cli.dashboard import Dashboard, choose, default_address, rollout
from serve_app.cluster.knob_changes import RedeploymentError, redeployment
from tests.cli.rest import application, details, entry
from tests.http_server import Answer, serving

KNOBS = {"autoscaling": {"a": {"max_replicas": 3}}}
WHERE = "http://head:8265"


def test_the_address_is_rays_variable_or_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_DASHBOARD_ADDRESS", raising=False)
    assert default_address() == "http://127.0.0.1:8265"

    monkeypatch.setenv("RAY_DASHBOARD_ADDRESS", "http://head:8265")
    assert default_address() == "http://head:8265"


@pytest.mark.parametrize("address", ["head:8265", "ray://head:10001", "", "auto"])
def test_address_without_dashboard_url_is_refused(address: str) -> None:
    with pytest.raises(
        CommandError, match=r"--address = .*: must be the URL of the dashboard, such as http://"
    ):
        Dashboard(address)


def test_details_are_read_and_documents_sent_with_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a-token")
    seen, keys = [], list[str | None]()

    def answer(method: str, path: str, body: bytes) -> Answer:
        seen.append((method, path, body))
        return 200, {"applications": {}} if method == "GET" else b""

    with serving(answer, keys) as url:
        dashboard = Dashboard(url + "/")
        assert dashboard.address == url
        assert dashboard.details() == {"applications": {}}
        dashboard.deploy({"applications": []})

    assert [(method, path) for method, path, _ in seen] == [
        ("GET", "/api/serve/applications/"),
        ("PUT", "/api/serve/applications/"),
    ]
    assert json.loads(seen[1][2]) == {"applications": []}
    assert keys == ["Bearer a-token"] * 2


def test_a_dashboard_that_is_away_or_silent_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(
            CommandError, match=f"^no Ray dashboard at {url}: timed out; .*RAY_DASHBOARD_ADDRESS$"
        ):
            Dashboard(url, timeout_s=0.05).details()
    with pytest.raises(
        CommandError, match=f"^no Ray dashboard at {url}: .*refused; .*RAY_DASHBOARD_ADDRESS$"
    ):
        Dashboard(url).details()


NO_DASHBOARD = "answers, but not as Ray's dashboard does"
TOKEN = (
    "requires its cluster's token ({}); set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH to the file that holds it"
)


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        *(
            (200, body, NO_DASHBOARD)
            for body in (b"<html>hello</html>", b"[]", b"{}", b'{"applications": []}', b"[" * 100_000)
        ),
        (400, b"1 error\n  for Schema " + b"x" * 999, "answers 400 Bad Request: 1 error for Schema xxx"),
        (401, b"Unauthorized", TOKEN.format("401 Unauthorized")),
        (403, b"Unauthorized", TOKEN.format("403 Forbidden")),
    ],
)
def test_an_answer_that_does_not_help_is_told_shortly(status: int, body: bytes, told: str) -> None:
    with serving(lambda *_: (status, body)) as url, pytest.raises(CommandError) as caught:
        Dashboard(url).details()

    assert str(caught.value).startswith(f"{url} {told}")
    assert len(str(caught.value)) < 600
    assert "\n" not in str(caught.value)


def other(name: str = "other", status: str = "RUNNING", **config: Any) -> dict[str, Any]:
    return entry(name, {"name": name, "import_path": "elsewhere:app", "route_prefix": "/o", **config}, status)


def test_the_only_application_of_ours_is_chosen() -> None:
    app = choose(details(other(), application("tide", "a", user_config=KNOBS)), None, WHERE)

    assert (app.name, app.status, app.user_config) == ("tide", "RUNNING", KNOBS)
    assert choose(details(application("tide", "a")), "tide", WHERE).user_config == {}


@pytest.mark.parametrize(
    ("applications", "name", "told"),
    [
        ([], None, f"no Tideserve application is deployed at {WHERE}"),
        ([other()], None, f"no Tideserve application is deployed at {WHERE}; there is 'other'"),
        (
            [application("one", "a"), application("two", "a")],
            None,
            f"several applications at {WHERE}: give --app, one of 'one', 'two'",
        ),
        ([application("tide", "a")], "tied", f"no application 'tied' at {WHERE}: there is 'tide'"),
        ([], "tide", f"no application 'tide' at {WHERE}: nothing is deployed"),
        (
            [other()],
            "other",
            "application 'other' is not Tideserve's: its import_path is 'elsewhere:app', "
            "not 'serve_app.app:build'",
        ),
        (
            [entry("tide", None, "RUNNING")],
            "tide",
            "application 'tide' was not deployed from a configuration (RUNNING); its knobs can be changed "
            "only after `serve deploy`, `serve run FILE` or `tideserve run`",
        ),
    ],
)
def test_an_application_that_cannot_be_chosen_is_explained(
    applications: list[dict[str, Any]], name: str | None, told: str
) -> None:
    with pytest.raises(CommandError) as caught:
        choose(details(*applications), name, WHERE)

    assert str(caught.value) == told


def test_ray_sees_no_reason_to_restart_anything() -> None:
    """Ray compares a hash of what would need a restart: with the same hash it only passes knobs on."""
    before = details(other(args={"x": 1}), application("tide", "a", user_config=KNOBS))

    after = ServeDeploySchema.model_validate(redeployment(before, "tide", {}))

    was = ServeDeploySchema.model_validate(
        {"applications": [app["deployed_app_config"] for app in before["applications"].values()]}
    )
    assert [get_app_code_version(app) for app in after.applications] == [
        get_app_code_version(app) for app in was.applications
    ]


def test_a_missing_ingress_is_added_and_the_capacity_stays() -> None:
    before = {**details(application("tide", "a")), "target_capacity": 50.0}

    document = redeployment(before, "tide", KNOBS)

    assert document["applications"][0]["deployments"] == [{"name": "Ingress", "user_config": KNOBS}]
    assert document["target_capacity"] == 50.0


def test_applications_that_ray_keeps_by_itself_are_left_out() -> None:
    leaving = entry("leaving", None, "DELETING")
    coded = {**entry("coded", None, "RUNNING"), "source": "imperative"}

    document = redeployment(details(leaving, coded, application("tide", "a")), "tide", {})

    assert [app["name"] for app in document["applications"]] == ["tide"]


HIDDEN = other(runtime_env={"env_vars": {"TOKEN": "<redacted>"}})


@pytest.mark.parametrize(
    ("app", "told"),
    [
        (entry("other", None, "DEPLOYING"), "does not report the configuration of application 'other'"),
        (HIDDEN, "hides the values of environment variables"),
    ],
)
def test_nothing_is_sent_that_would_delete_or_overwrite(app: dict[str, Any], told: str) -> None:
    with pytest.raises(RedeploymentError, match=told):
        redeployment(details(app, application("tide", "a")), "tide", {})


def state(
    app: str = "RUNNING", ingress: str = "HEALTHY", applied: bool = True, message: str = ""
) -> dict[str, Any]:
    tide = application("tide", "a", user_config=KNOBS, status=app)
    tide["message"] = message
    tide["deployments"]["Ingress"] |= {"status": ingress, "message": message}
    if not applied:
        tide["deployments"]["Ingress"]["deployment_config"]["user_config"] = {}
    return details(tide)


@pytest.mark.parametrize(
    ("now", "was_running", "done"),
    [
        *((state(ingress=ingress), True, True) for ingress in ("HEALTHY", "UPSCALING", "DOWNSCALING")),
        (state(applied=False), True, False),
        (state("DEPLOYING", "UPDATING"), True, False),
        (state("DEPLOYING"), True, False),
        (state("UNHEALTHY"), True, False),
        # Engines that were not up before are not waited for.
        (state("DEPLOYING"), False, True),
        (state("UNHEALTHY"), False, True),
    ],
)
def test_knobs_are_in_force_when_the_ingress_is_settled(
    now: dict[str, Any], was_running: bool, done: bool
) -> None:
    found = rollout(now, "tide", KNOBS, was_running)

    assert (found.done, found.failure) == (done, "")


@pytest.mark.parametrize(
    ("now", "failure"),
    [
        (details(), "application 'tide' is no longer deployed"),
        (details(application("tide", "a", user_config={})), "another configuration was deployed meanwhile"),
        (state("DEPLOY_FAILED", applied=False, message="no such deployment"), "no such deployment"),
        (state("UNHEALTHY", "UNHEALTHY", message="it raised"), "Ingress is UNHEALTHY: it raised"),
    ],
)
def test_what_keeps_knobs_from_coming_into_force_is_told(now: dict[str, Any], failure: str) -> None:
    assert rollout(now, "tide", KNOBS, was_running=True).failure == failure


@pytest.mark.parametrize("others", [[], [{**entry("tide", None, "RUNNING"), "source": "imperative"}]])
def test_application_without_a_configuration_is_an_error(others: list[dict[str, Any]]) -> None:
    with pytest.raises(
        RedeploymentError, match=r"no application 'tide' with a configuration, only \['other'\]"
    ):
        redeployment(details(other(), *others), "tide", {})
