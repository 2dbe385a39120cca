import os
import subprocess
import sys

import psutil
import pytest

from benchmarks.chaos.cpu_by_process import Reading, name_of, read
from benchmarks.idle import __main__ as command


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("ray::ServeController", "controller"),
        ("ray::IDLE", "spare processes"),
        ("ray-dashboard-ServeHead-0 (/x/bin/python -B -c ...)", "dashboard modules"),
        ("/x/bin/python -u /x/ray/_private/log_monitor.py --session-dir=/tmp/ray", "log-monitor"),
        ("/x/bin/python -u /x/ray/autoscaler/v2/monitor.py --logs-dir=/tmp/ray", "autoscaler"),
        ("VLLM::Grammars", "grammars"),
        ("/x/bin/python -m vllm.entrypoints.openai.api_server --port 1", "vLLM's own front end"),
        ("sleep 1", "other"),
        ("/x/bin/python -m benchmarks.common.supervise 1 /x/bin/python -m serve_app.cli.main run x", None),
    ],
)
def test_every_process_of_an_application_has_a_name(title: str, name: str | None) -> None:
    assert name_of(title.split(" ")) == name


def test_a_reading_counts_what_processes_and_their_ended_children_use() -> None:
    gone = psutil.Popen(["true"])
    gone.wait()
    ourselves = psutil.Process(os.getpid())
    before = read([ourselves, gone])
    subprocess.run([sys.executable, "-c", "for _ in range(10**6): pass"], check=True)

    used = read([ourselves, gone]).since(before, scale=2.0)

    assert used.count == {"other": 1}
    assert used.total_s >= 0.02  # a million turns of a loop take more than 0.01 s


def test_the_table_has_medians_by_process_and_the_range_of_all() -> None:
    found = [
        [Reading({"gcs": 1.0, "raylet": 2.0}, {"gcs": 1, "raylet": 1})] * 2,
        [Reading({"gcs": 0.5}, {"gcs": 1}), Reading({"gcs": 0.7}, {"gcs": 1})],
    ]

    assert command.to_table(found).splitlines() == [
        "| CPU s per minute | processes |       as it is | with the variables |",
        "| ---------------- | --------: | -------------: | -----------------: |",
        "| raylet           |         1 |           2.00 |               0.00 |",
        "| gcs              |         1 |           1.00 |               0.60 |",
        "| all              |         2 |           3.00 |               0.60 |",
        "| all, cores       |           | 0.050 to 0.050 |     0.008 to 0.012 |",
    ]


def test_variables_are_read_from_the_command_line() -> None:
    options = command.parse(["--env", "RAY_a=1", "--env", "RAY_b=x=y", "--rounds", "3"])

    assert options.variables == {"RAY_a": "1", "RAY_b": "x=y"}
    assert (options.rounds, options.config.name) == (3, "serve.yaml")


@pytest.mark.parametrize(
    ("argv", "said"), [(["--env", "=1"], "'=1' is not KEY=VALUE"), (["--rounds", "0"], "--rounds")]
)
def test_a_wrong_command_line_says_what_is_wrong(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.parse(argv)

    assert ended.value.code == 2
    assert said in capsys.readouterr().err
