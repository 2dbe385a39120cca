"""How often an application wakes without requests: counts, which a busy machine does not change."""

import pytest

from benchmarks import REPOSITORY
from benchmarks.idle import measure

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

MOST = {
    "controller": 350,
    "dashboard-agent": 230,
    "ingress": 260,
    "spare processes": 2 * 170,
    "engine-replica": 230,
    "gcs": 215,
}
"""Wake-ups a second: a sixth more than docs/measurements.md has."""
MOST_OF_ALL = 2400


def test_an_idle_application_wakes_seldom() -> None:
    seconds = 20.0
    wakes = measure(REPOSITORY / "config" / "serve.yaml", settle_s=20.0, seconds=seconds).wakes()

    found = {name: wakes[name] / seconds for name in MOST}
    assert {name: most for name, most in found.items() if most > MOST[name]} == {}
    assert wakes.total() / seconds <= MOST_OF_ALL
