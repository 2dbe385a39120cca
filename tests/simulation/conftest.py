"""The options of the simulation."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("simulation")
    group.addoption("--seed", action="append", help="run only the world of this seed")
    group.addoption("--minutes", type=float, help="run worlds of new seeds for so long")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        seeds = metafunc.config.getoption("--seed", default=None) or [str(seed) for seed in range(FIXED)]
        metafunc.parametrize("seed", seeds)


FIXED = 130
"""The worlds of each run of the tests."""
