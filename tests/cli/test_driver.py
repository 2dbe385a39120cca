from __future__ import annotations

from ray.serve.schema import (
    ApplicationStatus,
    ApplicationStatusOverview,
    DeploymentStatus,
    DeploymentStatusOverview,
    DeploymentStatusTrigger,
    ServeStatus,
)

from serve_app.cli.driver import failures


def application(status: ApplicationStatus, message: str, **deployments: str) -> ApplicationStatusOverview:
    return ApplicationStatusOverview(
        status=status,
        message=message,
        last_deployed_time_s=0.0,
        deployments={
            name: DeploymentStatusOverview(
                status=DeploymentStatus.DEPLOY_FAILED,
                status_trigger=DeploymentStatusTrigger.REPLICA_STARTUP_FAILED,
                replica_states={},
                message=said,
            )
            for name, said in deployments.items()
        },
    )


def test_an_application_that_cannot_be_deployed_is_named_with_the_last_lines_of_the_reason() -> None:
    traceback = "\n".join(f"line {number}" for number in range(20))
    status = ServeStatus(
        applications={
            "well": application(ApplicationStatus.RUNNING, ""),
            "ill": application(ApplicationStatus.DEPLOY_FAILED, "Ingress is unhealthy.", Ingress=traceback),
        }
    )

    assert list(failures(status)) == [("ill", [f"line {number}" for number in range(8, 20)])]


def test_a_short_reason_is_told_in_full() -> None:
    status = ServeStatus(
        applications={"ill": application(ApplicationStatus.DEPLOY_FAILED, "No module named 'x'")}
    )

    assert list(failures(status)) == [("ill", ["No module named 'x'"])]
