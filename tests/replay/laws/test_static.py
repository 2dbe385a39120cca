"""A fixed number of replicas."""

from replay.laws.static import Static
from tests.benchmarks.peers.build import sample


def test_it_asks_for_the_same_whatever_happens() -> None:
    law = Static(12)
    assert law.name == "static:12"
    assert {law.decide(seen) for seen in (sample(), sample(60.0, running=[9.0], held=4))} == {12}
