import pytest

from benchmarks.cold_start.options import parse


def test_the_defaults_start_one_replica_and_three_from_zero_beside_vllm() -> None:
    options = parse([])

    assert options.systems == ("tideserve", "vllm")
    assert options.replicas == (1, 3)


def test_fresh_measures_the_whole_command() -> None:
    assert parse(["--fresh"]).systems == ("fresh", "vllm")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--systems", "tideserve,triton"], "'triton' is none of tideserve, no-zygote"),
        (["--systems", "vllm,vllm"], "--systems: each may be given once"),
        (["--replicas", "0"], "numbers must be at least 1"),
        (["--replicas", "two"], "'two' is not a list of whole numbers"),
        (["--rounds", "0", "--traced", "0"], "one of them at least 1"),
        (["--rounds", "-1"], "at least 0"),
        (["--burst", "2"], "2 requests cannot be answered by 3 replicas"),
        (["--kv-cache-mib", "0"], "must be above 0"),
        (["--timeout", "0"], "must be above 0"),
        (["--model", "/nowhere"], "neither a folder nor a Hugging Face id"),
    ],
)
def test_a_bad_argument_is_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(arguments)

    assert ended.value.code == 2
    assert said in capsys.readouterr().err
