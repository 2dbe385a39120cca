import pytest

from benchmarks.batch import Measured, main, report
from tests.benchmarks.test_serving_overhead import cells


def test_medians_have_the_ratio_of_the_batch_round_by_round() -> None:
    rounds = [
        {"batch": Measured(900.0, 0.5, [200.0, 201.0]), "direct": Measured(300.0, 2.0, [])},
        {"direct": Measured(500.0, 1.0, []), "batch": Measured(500.0, 0.7, [202.0])},
    ]

    text = report(rounds, [1.0] * 90 + [60.0] * 10)

    assert cells(text, "batch") == [["700", "1.00 (1.00 to 1.00)", "0.60 ms"]]
    assert cells(text, "direct") == [["400", "2.00 (1.00 to 3.00)", "1.50 ms"]]
    assert "by round: 200, 201; 202." in text
    assert "100, P50 1.0 ms, P95 60.0 ms, longest 60.0 ms" in text


@pytest.mark.parametrize("option", ["--lines=99", "--lines=50001", "--rounds=0", "--batches=1"])
def test_values_out_of_bounds_are_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([option])

    name, _, value = option.partition("=")
    assert f"{name} = {value}: must be " in capsys.readouterr().err
