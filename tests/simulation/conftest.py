"""The options of the simulation."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("simulation")
    group.addoption("--seed", action="append", help="run only the world of this seed")
    group.addoption("--minutes", type=float, help="run worlds of new seeds for so long")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    given = metafunc.config.getoption("--seed", default=None)
    for fixture, fixed in (("seed", [str(seed) for seed in range(FIXED)]), ("named_seed", NAMED)):
        if fixture in metafunc.fixturenames:
            seeds = fixed if given is None else [seed for seed in given if ("-" in seed) == (fixed is NAMED)]
            metafunc.parametrize(fixture, seeds)


FIXED = 60
"""The worlds of each run of the tests."""
NAMED = [
    f"{kind}-{number}"
    for kind, count in (("batch", 6), ("ledger", 3), ("policy", 3))
    for number in range(count)
]
"""The worlds beside the request path."""
