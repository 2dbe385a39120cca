from serve_app.engine.stall import LOOK_INTERVAL_S, NOTICED_AFTER_S, StallDetector


class Engine:
    """An engine looked at twice a second; `now` is its clock."""

    def __init__(self) -> None:
        self.detector = StallDetector()
        self.now = 100.0
        self.steps = 0

    def go_on(self, seconds: float, *, sequences: int, stepping: bool) -> None:
        for _ in range(round(seconds / LOOK_INTERVAL_S)):
            self.now += LOOK_INTERVAL_S
            self.steps += 50 * stepping
            self.detector.look(self.steps, sequences, self.now)


def test_an_engine_that_stops_stepping_with_sequences_is_noticed() -> None:
    engine = Engine()
    engine.go_on(5, sequences=8, stepping=True)
    assert not engine.detector.noticed

    engine.go_on(NOTICED_AFTER_S - LOOK_INTERVAL_S, sequences=8, stepping=False)
    assert not engine.detector.noticed
    engine.go_on(LOOK_INTERVAL_S, sequences=8, stepping=False)

    assert engine.detector.noticed
    assert engine.detector.stalled_s == NOTICED_AFTER_S
    assert not engine.detector.hung(30)
    engine.go_on(30, sequences=8, stepping=False)
    assert engine.detector.hung(30)


def test_an_idle_engine_does_not_stall() -> None:
    engine = Engine()
    engine.go_on(5, sequences=8, stepping=True)
    engine.go_on(3600, sequences=0, stepping=False)

    engine.go_on(1, sequences=1, stepping=False)

    assert not engine.detector.noticed
    assert engine.detector.stalled_s == 1.0


def test_one_step_ends_the_stall() -> None:
    engine = Engine()
    engine.go_on(5, sequences=8, stepping=True)
    engine.go_on(5, sequences=8, stepping=False)
    assert engine.detector.noticed

    engine.go_on(LOOK_INTERVAL_S, sequences=8, stepping=True)

    assert not engine.detector.noticed


def test_stalled_engine_without_sequences_stays_stalled_until_answer() -> None:
    """Its sequences have gone to other replicas; back among those picked, it would get the next ones."""
    engine = Engine()
    engine.go_on(5, sequences=8, stepping=True)
    engine.go_on(5, sequences=8, stepping=False)

    engine.go_on(30, sequences=0, stepping=False)
    assert engine.detector.noticed
    assert engine.detector.hung(30)

    engine.detector.note_answer()
    engine.go_on(30, sequences=0, stepping=False)
    assert not engine.detector.noticed


def test_standstill_is_no_longer_than_its_sequence() -> None:
    engine = Engine()
    engine.go_on(5, sequences=8, stepping=True)
    stopped = engine.now  # no step ends after this
    engine.go_on(NOTICED_AFTER_S - LOOK_INTERVAL_S, sequences=8, stepping=False)
    assert engine.detector.standstill_s(engine.now) == 0.0
    engine.go_on(LOOK_INTERVAL_S, sequences=8, stepping=False)
    assert engine.detector.standstill_s(engine.now + 0.4) == engine.now + 0.4 - stopped

    idle = Engine()
    idle.go_on(5, sequences=8, stepping=True)
    idle.go_on(60, sequences=0, stepping=False)
    came = idle.now + 0.3
    idle.go_on(5, sequences=1, stepping=False)
    assert NOTICED_AFTER_S < idle.detector.standstill_s(idle.now) < idle.now - came


def test_long_steps_may_take_three_times_the_longest() -> None:
    engine = Engine()
    engine.go_on(5, sequences=1, stepping=True)
    engine.go_on(20, sequences=1, stepping=False)
    engine.go_on(LOOK_INTERVAL_S, sequences=1, stepping=True)
    assert engine.detector.longest_step_s == 20.0

    engine.go_on(59, sequences=1, stepping=False)
    assert not engine.detector.noticed
    assert not engine.detector.hung(30)
    engine.go_on(1, sequences=1, stepping=False)
    assert engine.detector.noticed
    assert engine.detector.hung(30)


def test_time_in_which_nobody_looked_is_not_held_against_it() -> None:
    """The replica's own process was stopped: the engine's results lie in its socket, unread."""
    engine = Engine()
    engine.go_on(5, sequences=8, stepping=True)

    engine.now += 60
    engine.detector.look(engine.steps, 8, engine.now)

    assert engine.detector.stalled_s == 2 * LOOK_INTERVAL_S


def test_nothing_is_said_of_an_engine_that_shows_no_steps() -> None:
    engine = Engine()
    engine.go_on(60, sequences=8, stepping=False)

    assert not engine.detector.noticed
