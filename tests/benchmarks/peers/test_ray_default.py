"""Ray Serve's default policy: by hand, and tick by tick against Ray's own code."""

import random

import pytest

from benchmarks.peers.ray_default import RayDefault
from replay.policies import Sample
from tests.benchmarks.peers.build import drive, sample, spread
from tests.benchmarks.peers.real_ray import RealRay


class Fleet:
    """A fleet under random load, that takes its time over what it is asked for."""

    def __init__(self, seed: int, tick_s: float) -> None:
        self.random = random.Random(seed)
        self.ticks = 0
        self.tick_s = tick_s
        self.target = 0
        self.ready: list[int] = []
        self.starting: list[float] = []
        self.numbers = 0
        self.arrivals = 0
        self.load = 0
        self.counts: dict[int, int] = {}
        self.held = 0

    @property
    def now(self) -> float:
        return self.ticks * self.tick_s if self.tick_s != 0.1 else self.ticks / 10

    def sample(self) -> Sample:
        """The next tick."""
        self.ticks += 1
        while self.starting and self.starting[0] <= self.now:
            self.starting.pop(0)
            self.ready.append(self.numbers)
            self.numbers += 1
        self._move_load()
        return sample(
            self.now,
            running=[min(self.counts[n], 8) for n in self.ready],
            waiting=[max(0, self.counts[n] - 8) for n in self.ready],
            replicas=self.ready,
            target=self.target,
            held=self.held,
            arrivals=self.arrivals,
        )

    def obey(self, target: int) -> None:
        """Start and stop replicas; any of them may be the one that goes."""
        self.target = target
        for _ in range(target - len(self.ready) - len(self.starting)):
            self.starting.append(self.now + self.random.choice([3.0, 17.0, 40.0]))
        self.starting.sort()
        while len(self.ready) + len(self.starting) > target:
            if self.starting:
                self.starting.pop()
            else:
                gone = self.random.choice(self.ready)
                self.ready.remove(gone)

    def _move_load(self) -> None:
        draw = self.random.random()
        if draw < 0.002:
            self.load = 0
        elif draw < 0.01:
            self.load = self.random.choice([0, 1, 2, 4, 9, 24, 70])
        elif draw < 0.05:
            self.load = max(0, self.load + self.random.randint(-3, 3))
        if draw < 0.3 and self.load:
            self.arrivals += 1
        self.held = 0 if self.ready else self.load
        if draw < 0.05 or set(self.counts) != set(self.ready):
            # Some replicas get nothing, a new one for a while perhaps.
            open_to = [n for n in self.ready if self.random.random() < 0.8]
            self.counts = dict.fromkeys(self.ready, 0)
            for _ in range(self.load if open_to else 0):
                self.counts[self.random.choice(open_to)] += 1


CONFIGS: list[dict[str, float]] = [
    {},
    {"target_ongoing_requests": 2.0, "downscale_delay_s": 60.0},
    {"target_ongoing_requests": 5.0, "downscale_delay_s": 45.0},
    {"target_ongoing_requests": 1.0, "downscale_delay_s": 10.0, "upscale_delay_s": 4.0},
    {"target_ongoing_requests": 10.0, "downscale_delay_s": 0.0, "upscale_delay_s": 0.0},
]


@pytest.mark.parametrize("config", CONFIGS)
def test_targets_equal_rays_where_arithmetic_is_exact(
    config: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Quarters of a second and whole requests: no rounding anywhere, so whole numbers of replicas are hit.
    targets = compare(config, monkeypatch, tick_s=0.25, ticks=3_000)

    assert len(set(targets)) > 2


@pytest.mark.parametrize("seed", range(3))
def test_targets_equal_rays_at_its_own_pace(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Tenths of a second round; a target that whole requests never add up to keeps rounding out of decisions.
    config = {"target_ongoing_requests": 2.0317, "downscale_delay_s": 25.0}

    assert 0 in compare(config, monkeypatch, tick_s=0.1, ticks=3_000, seed=seed)


def compare(
    config: dict[str, float], monkeypatch: pytest.MonkeyPatch, *, tick_s: float, ticks: int, seed: int = 0
) -> list[int]:
    ray, policy, fleet = RealRay(monkeypatch, **config), RayDefault(**config), Fleet(seed, tick_s)
    targets = []
    for _ in range(ticks):
        seen = fleet.sample()
        expected = ray.decide(seen)
        assert policy.decide(seen) == expected, f"at {seen.at} s"
        fleet.obey(expected)
        targets.append(expected)
    return targets


# By hand.


def test_each_direction_has_its_own_delay() -> None:
    # 8 requests over a target of 2 are 4 replicas. The controller has the report of t=0 at 0.1 s, wants 4
    # from then on, and may have them 30 s later.
    policy = RayDefault()
    assert drive(policy, 40.0, 8, target=1) == [(30.1, 4)]

    # Then 3 requests. The three replicas of 30.1 s are first written down at 36 s, so the window of the
    # report of 50 s begins there: (8 * 6 s + 3 * 8.1 s) / 14.1 s = 5.13 at 50.1 s, which is 3 replicas, and
    # down it is from then on. 600 s later the mean is 3: 2 replicas.
    assert drive(policy, 620.0, 3, target=4, begin=40.0) == [(650.1, 2)]


def test_name_is_the_specification() -> None:
    assert (RayDefault().name, RayDefault(5).name) == ("ray", "ray:5")


def test_replicas_without_numbers_are_known_by_place() -> None:
    anonymous, numbered = RayDefault(), RayDefault()
    for at in range(400):
        known = sample(at / 10, running=spread(9, 3))
        unknown = sample(at / 10, running=spread(9, 3), replicas=())
        assert anonymous.decide(unknown) == numbered.decide(known)
