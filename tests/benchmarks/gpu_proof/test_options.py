import pytest

from benchmarks.gpu_proof.options import parse

STAGES = ("model", "step-time", "slo")


def parsed(*words: str):
    return parse(list(words), STAGES, STAGES[:2])


def test_a_gpu_gets_random_weights_of_a_real_architecture_unless_a_model_is_named() -> None:
    assert (parsed().device, parsed().random_weights, parsed().pace) == ("gpu", "llama-3.1-8b", 1.0)
    assert parsed("--model", "org/model").random_weights is None
    assert parsed("--device", "cpu").random_weights is None


def test_stages_are_in_their_own_order_whatever_the_order_asked() -> None:
    assert parsed("--stages", "slo,model").stages == ("model", "slo")
    assert parsed("--stages", "smoke").stages == ("model", "step-time")
    assert parsed("--again", "all").again == STAGES


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--minutes", "1"], "--minutes = 1: must be from 2 to 240"),
        (["--minutes", "nan"], "--minutes = nan: must be from 2 to 240"),
        (["--price", "-1"], "--price = -1: must be from 0 to 10,000"),
        (["--stages", "slow"], "--stages: 'slow' is none of model, step-time, slo"),
        (["--again", "slow"], "--again: 'slow' is none of model, step-time, slo"),
        (["--model", "a/b", "--random-weights", "tiny"], "--model and --random-weights: one or the other"),
        (["--random-weights", "huge"], "--random-weights = 'huge': must be one of llama-3.1-8b"),
        (["--device", "cpu", "--checkpoint"], "--checkpoint: only with --random-weights"),
    ],
)
def test_a_wrong_option_is_refused_with_its_value_and_bound(capsys, words: list[str], said: str) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(*words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
