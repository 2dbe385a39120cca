from benchmarks.law_cells.cells import CELLS
from benchmarks.law_cells.matrix import matrix
from replay.defaults import ORACLE, OURS, STATIC
from tests.benchmarks.law_cells.build import BURSTS, row

COLUMNS = [OURS, "before", "ray", STATIC, ORACLE]


def lines(*rows: object) -> list[str]:
    text = matrix(rows, COLUMNS, [OURS, "before"])  # type: ignore[arg-type]
    return [" ".join(line.split()) for line in text.splitlines()]


def test_a_row_has_cost_over_the_oracles_and_attainment_of_every_law() -> None:
    header, _, only = lines(row(before=(1100.0, 0.98), ray=(3000.0, 1.0)))

    assert header == "| cell | traffic | kind | **ours** | `before` | `ray` | `static` |"
    assert only == (
        "| base | calm | smooth | 1.20 @ 99.5 % (0, 3) | 1.10 @ 98.0 % (0, 3) | 3.00 @ 100 % | "
        "2.00 @ 100 % (7) |"
    )


def test_ours_is_bold_where_it_misses_what_a_static_fleet_attains() -> None:
    assert "**1.20 @ 98.0 % (0, 3)**" in lines(row(ours=(1200.0, 0.98)))[2]
    assert "**" not in lines(row(BURSTS, ours=(1200.0, 0.98)))[2]
    assert "**" not in lines(row(ours=(1200.0, 0.98), static=(2000.0, 0.97)))[2]


def test_where_the_oracle_misses_the_goal_gpu_seconds_stand_in_place_of_the_ratio() -> None:
    only = lines(row(cell=CELLS[3], oracle=(1000.0, 0.97)))[2]

    assert "| cold-180 | calm | smooth | (1.2k) @ 99.5 % (0, 3) | - | - | (2.0k) @ 100 % (7) |" in only
