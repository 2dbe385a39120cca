from collections.abc import Iterator
from typing import Any

import pytest

from serve_app.cli import CommandError
from serve_app.cli import knobs_command as knobs
from serve_app.cli.knobs_command import _wait
from serve_app.cli.main import main
from tests.cli.rest import FakeRay, application, details, entry
from tests.http_server import serving

GIVEN = {"autoscaling": {"tiny": {"max_replicas": 2}}}


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knobs, "_POLL_S", 0.0)


@pytest.fixture
def ray() -> FakeRay:
    elsewhere = {"name": "other", "import_path": "elsewhere:app", "route_prefix": "/other"}
    return FakeRay(
        details(entry("other", elsewhere, "RUNNING"), application("tide", "tiny", user_config=GIVEN))
    )


@pytest.fixture
def address(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with serving(ray.answer) as url:
        monkeypatch.setenv("RAY_DASHBOARD_ADDRESS", url)
        yield url


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    status = main(["knobs", *argv])
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.parametrize(
    "argv", [[], ["get"], ["--app", "tide"], ["--app", "tide", "get"], ["get", "--app", "tide"]]
)
def test_knobs_in_force_are_printed_with_defaults(
    address: str, capsys: pytest.CaptureFixture[str], argv: list[str]
) -> None:
    status, out, err = run(capsys, *argv)

    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == f"application 'tide' at {address}: RUNNING"
    assert lines[2] == "tiny"
    assert "  * max_replicas                2               default 1" in lines
    assert [line for line in lines if line.startswith("  * ")] == [lines[5]]
    assert "ingress" in lines


def test_the_address_may_be_given_before_or_after_the_action(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_DASHBOARD_ADDRESS", "http://127.0.0.1:1")
    with serving(ray.answer) as url:
        assert run(capsys, "--address", url)[0] == 0
        assert run(capsys, "--address", url, "get")[0] == 0
        assert run(capsys, "get", "--address", url)[0] == 0


def test_setting_a_knob_changes_it_and_nothing_else(
    ray: FakeRay, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = ray.details["applications"]["other"]["deployed_app_config"]

    status, out, err = run(capsys, "set", "tiny", "max_replicas=5", "mode=advise")

    assert (status, err) == (0, "")
    (document,) = ray.sent
    other, tide = document["applications"]
    assert other == before
    assert tide["deployments"] == [
        {"name": "Ingress", "user_config": {"autoscaling": {"tiny": {"max_replicas": 5, "mode": "advise"}}}}
    ]
    for options in ("http_options", "grpc_options"):
        assert document[options] == ray.details[options]
    assert out.splitlines() == [
        f"tideserve: application 'tide' at {address}",
        "  tiny.mode: act -> advise",
        "  tiny.max_replicas: 2 -> 5",
        "tideserve: sent",
        *[line for line in out.splitlines() if " s  " in line],
        next(line for line in out.splitlines() if line.startswith("tideserve: in force after ")),
        "tideserve: the next deploy undoes this change unless its file has, under 'tide':",
        "  deployments:",
        "  - name: Ingress",
        "    user_config:",
        "      autoscaling:",
        "        tiny:",
        "          max_replicas: 5",
        "          mode: advise",
        "On KubeRay this file is serveConfigV2 of the RayService.",
    ]
    said = [line.partition(" s  ")[2] for line in out.splitlines() if " s  " in line]
    assert said == ["RUNNING, the change has reached Ray", "DEPLOYING, Ingress UPDATING"]


def test_the_model_may_be_left_out_and_the_ingress_named(
    ray: FakeRay, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "set", "max_replicas=default")[0] == 0
    assert run(capsys, "set", "ingress", "max_replicas=2")[0] == 0

    configs = [document["applications"][1]["deployments"][0]["user_config"] for document in ray.sent]
    assert configs == [{}, {"ingress": {"max_replicas": 2}}]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["max_replicas=0"],
            "autoscaling['tiny'].max_replicas = 0: input should be greater than or equal to 1",
        ),
        (["tiny", "min_replicas=9"], "must be at most max_replicas = 2"),
        (['adapters={"a":"embedded"}'], "autoscaling['tiny'].adapters: the model has no setting `lora`"),
        (["tiny", "max_replica=9"], "tiny.max_replica = 9: no such knob; did you mean 'max_replicas'?"),
        (["small", "max_replicas=9"], "MODEL = 'small': no such model; this application has 'tiny'"),
    ],
)
def test_bad_knobs_are_refused_before_anything_is_sent(
    ray: FakeRay, address: str, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    status, out, err = run(capsys, "set", *arguments)

    assert (status, out, ray.sent) == (2, "", [])
    assert told in err


def test_a_change_repairs_rejected_knobs(
    ray: FakeRay, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    deployed = ray.details["applications"]["tide"]["deployed_app_config"]["deployments"][0]
    bad = {"max_replicas": 0, "headroom": 11, "ttft_target_s": 3}
    deployed["user_config"] = {"autoscaling": {"tiny": bad}}

    assert "headroom = 11" in run(capsys, "set", "max_replicas=5")[2]  # both must be repaired at once
    status, out, err = run(capsys, "set", "max_replicas=5", "headroom=default")

    assert (status, err) == (0, "")
    assert out.splitlines()[0].endswith("its deployed knobs are rejected, and these replace them")
    assert out.splitlines()[1:3] == ["  tiny.max_replicas = 5", "  tiny.headroom = 0.15"]
    assert out.splitlines()[3] == "tideserve: sent"
    (document,) = ray.sent
    assert document["applications"][1]["deployments"][0]["user_config"] == {
        "autoscaling": {"tiny": {"max_replicas": 5, "ttft_target_s": 3}}
    }


def test_a_dry_run_says_what_would_change(
    ray: FakeRay, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = run(capsys, "set", "max_replicas=5", "--dry-run")

    assert (status, ray.sent) == (0, [])
    assert out.splitlines()[1:] == ["  tiny.max_replicas: 2 -> 5", "tideserve: nothing was sent (--dry-run)"]


def test_what_is_so_already_is_not_sent(
    ray: FakeRay, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = run(capsys, "set", "max_replicas=2")

    assert (status, ray.sent) == (0, [])
    assert out.splitlines()[1:] == ["  no value in force changes", "tideserve: nothing was sent"]


def test_another_application_that_ray_will_try_again_is_mentioned(
    ray: FakeRay, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ray.details["applications"]["other"]["status"] = "DEPLOY_FAILED"

    assert (
        "retry application 'other', whose last deployment failed" in run(capsys, "set", "max_replicas=3")[1]
    )


def test_what_ray_refuses_ends_the_command_with_its_reason(
    ray: FakeRay, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ray.refusal = (400, b"ValidationError: no")

    status, _, err = run(capsys, "set", "max_replicas=3")

    assert (status, err) == (1, f"tideserve: {address} answers 400 Bad Request: ValidationError: no\n")


def test_an_ingress_that_cannot_take_them_over_ends_the_command(
    ray: FakeRay, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ray.outcome = "UNHEALTHY"

    status, _, err = run(capsys, "set", "max_replicas=3")

    assert status == 1
    assert "Ingress is UNHEALTHY" in err


def test_patience_ends_after_two_minutes(capsys: pytest.CaptureFixture[str]) -> None:
    stuck = details(application("tide", "tiny", user_config=GIVEN, status="DEPLOYING"))
    clock = iter(range(0, 1000, 50))

    with pytest.raises(
        CommandError, match=r"not in force everywhere after 150 s \(DEPLOYING, Ingress HEALTHY\)"
    ):
        _wait(lambda: stuck, "tide", GIVEN, True, lambda: next(clock), lambda seconds: None)

    assert capsys.readouterr().out == "tideserve:  50.0 s  DEPLOYING, Ingress HEALTHY\n"


@pytest.mark.parametrize("action", [["get"], ["set", "max_replicas=1"]])
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--app", "other"], "application 'other' is not Tideserve's"),
        (["--address", "http://127.0.0.1:1"], "no Ray dashboard at http://127.0.0.1:1: "),
    ],
)
def test_what_cannot_be_reached_is_one_line_and_status_1(
    address: str, capsys: pytest.CaptureFixture[str], action: list[str], options: list[str], told: str
) -> None:
    status, out, err = run(capsys, *action, *options)

    assert (status, out) == (1, "")
    assert err.startswith(f"tideserve: {told}")
    assert err.count("\n") == 1


def test_an_application_that_failed_for_its_settings_is_told_so(
    ray: FakeRay, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config: dict[str, Any] = ray.details["applications"]["tide"]["deployed_app_config"]
    del config["args"]

    status, _, err = run(capsys)

    assert status == 2
    assert "args = None: must be a mapping" in err
