"""The options of the simulation."""

import pytest

FOUND = ["398", "43644ee9:c0,2:e2:t1", "batch-19", "batch-21"]
"""Worlds that found a fault."""
_COUNTS = {"": 30, "crowd-": 4, "turns-": 4, "batch-": 6, "ledger-": 3, "policy-": 3}
TWICE = ["3", "crowd-1", "batch-1", "ledger-1", "policy-1"]
"""Worlds that are run a second time, which must have the same trace."""
_SEEDS = [f"{kind}{number}" for kind, count in _COUNTS.items() for number in range(count)]
FIXED = FOUND + [seed for seed in _SEEDS if seed not in TWICE]
"""The worlds of each run of the tests, beside `TWICE`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("simulation")
    group.addoption("--seed", action="append", help="run only the world of this seed")
    group.addoption("--minutes", type=float, help="run worlds of new seeds for so long")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", metafunc.config.getoption("--seed", default=None) or FIXED)
