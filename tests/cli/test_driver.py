from collections.abc import Sequence

import yaml
from ray._private import parameter
from ray.serve._private.application_state import ApplicationStatusInfo, StatusOverview
from ray.serve._private.common import DeploymentStatus, DeploymentStatusInfo, DeploymentStatusTrigger
from ray.serve.schema import ApplicationStatus

from serve_app.cli import driver
from serve_app.cli.driver import failures, take_any_agent_port, warm_at_once
from serve_app.settings.tree import ModelSettings


def application(name: str, status: ApplicationStatus, message: str, **deployments: str) -> StatusOverview:
    failed = (DeploymentStatus.DEPLOY_FAILED, DeploymentStatusTrigger.REPLICA_STARTUP_FAILED)
    parts = [DeploymentStatusInfo(part, *failed, said) for part, said in deployments.items()]
    return StatusOverview(ApplicationStatusInfo(status, message), name, parts)


def test_an_application_that_cannot_be_deployed_is_named_with_the_last_lines_of_the_reason() -> None:
    traceback = "\n".join(f"line {number}" for number in range(20))
    found = failures(
        [
            application("well", ApplicationStatus.RUNNING, ""),
            application("ill", ApplicationStatus.DEPLOY_FAILED, "Ingress is unhealthy.", Ingress=traceback),
        ]
    )

    assert list(found) == [("ill", [f"line {number}" for number in range(8, 20)])]


def test_a_short_reason_is_told_in_full() -> None:
    found = failures([application("ill", ApplicationStatus.DEPLOY_FAILED, "No module named 'x'")])

    assert list(found) == [("ill", ["No module named 'x'"])]


def test_each_failure_is_printed_once_until_it_is_over(monkeypatch, capsys) -> None:
    ill = application("ill", ApplicationStatus.DEPLOY_FAILED, "No module named 'x'")
    late = application("late", ApplicationStatus.DEPLOY_FAILED, "no room")
    well = application("ill", ApplicationStatus.RUNNING, "")
    reported: set[str] = set()
    lines = []
    for seen in ([ill], [ill], [ill, late], [well, late], [ill, late]):
        monkeypatch.setattr(driver, "statuses", lambda seen=seen: seen)
        driver._report_failures(reported)
        lines.append(capsys.readouterr().err.count("could not be deployed"))

    assert lines == [1, 0, 1, 0, 1]


def test_a_second_cluster_s_dashboard_agent_does_not_ask_for_the_first_one_s_port(monkeypatch) -> None:
    assert parameter.RayParams().dashboard_agent_listen_port == 52365
    monkeypatch.setattr(parameter, "RayParams", parameter.RayParams)
    take_any_agent_port()

    started = parameter.RayParams(num_cpus=2)
    assert started.dashboard_agent_listen_port == 0
    assert started.num_cpus == 2


def test_nodes_are_warmed_at_once_for_what_the_driver_s_own_tasks_can_stand_for(
    monkeypatch, tmp_path
) -> None:
    def app(name: str, zygote: bool = True, **more: object) -> dict[str, object]:
        models = [{"name": name, "model": "embedded", "device": "cpu"}]
        policy = {"policy_function": "serve_app.controller.serve_policy:ServePolicy"}
        whole = {
            "import_path": "serve_app.app:build",
            "autoscaling_policy": policy,
            "route_prefix": f"/{name}",
        }
        return {**whole, "name": name, "args": {"models": models, "zygote": zygote}, **more}

    warmed: list[str] = []

    def warm(models: Sequence[ModelSettings], _: set[tuple[str, str]]) -> None:
        warmed.extend(model.name for model in models)

    monkeypatch.setattr(driver, "warm", warm)
    ours = [app("here"), app("cold", zygote=False), app("elsewhere", runtime_env={"env_vars": {"A": "1"}})]
    config = tmp_path / "serve.yaml"
    config.write_text(
        yaml.safe_dump({"applications": [*ours, {"import_path": "somebody:app", "name": "other"}]})
    )

    warm_at_once(config)

    assert warmed == ["here"]
