import json
from pathlib import Path

import pytest

from benchmarks.serving_overhead.options import parse
from benchmarks.serving_overhead.servers import Engine, tideserve_config
from serve_app.cli.config_file import read_config


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text("{}")
    return str(tmp_path)


def test_one_number_of_requests_stands_for_every_concurrency(model: str) -> None:
    options = parse(["--model", model, "--concurrency", "1,8", "--requests", "5"])

    assert options.requests == (5, 5)


def test_environment_is_for_all_servers_or_for_one(model: str) -> None:
    options = parse(["--model", model, "--env", "A=1", "--env", "tideserve:B=x:y=z"])

    assert options.extra_env == {"": {"A": "1"}, "tideserve": {"B": "x:y=z"}}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--servers", "bare,nginx"],
        ["--servers", "bare,bare"],
        ["--concurrency", "8,8"],
        ["--concurrency", "0"],
        ["--requests", "1,2"],
        ["--requests", "many"],
        ["--max-tokens", "1"],
        ["--env", "nobody:A=1"],
        ["--env", "A"],
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: list[str], model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        parse(["--model", model, *arguments])

    assert refused.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_tideserve_gets_the_same_engine_arguments_as_vllm() -> None:
    engine = Engine(Path("/m"), "tiny", 2048, 64, "bfloat16", True, 1)

    text = json.dumps(tideserve_config(engine))

    for value in ('"/m"', '"tiny"', "2048", "64", '"bfloat16"', "true", str(1 << 30)):
        assert value in text


def test_what_tideserve_gets_is_a_valid_configuration_of_one_replica(tmp_path: Path) -> None:
    engine = Engine(Path("/m"), "tiny", 2048, 64, "bfloat16", True, 1)
    path = tmp_path / "tideserve.yaml"
    path.write_text(json.dumps(tideserve_config(engine)))

    config = read_config(path)

    knobs = config.applications["tideserve"].knobs["tiny"]
    assert (knobs.mode, knobs.min_replicas, knobs.max_replicas) == ("act", 1, 1)
    assert config.applications["tideserve"].settings.models[0].kv_cache_memory_bytes == 1 << 30
