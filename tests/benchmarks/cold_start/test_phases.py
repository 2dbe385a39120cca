from datetime import datetime
from typing import Any

import pytest

from benchmarks.cold_start.phases import (
    ENGINE_CORE,
    FRONT_END,
    REQUEST,
    WORKER,
    Observed,
    Phase,
    core_up,
    engines,
    flatten,
    own_phases,
    since,
    tideserve_phases,
    vllm_phases,
)
from benchmarks.cold_start.spans import Span

NOON = datetime(2026, 11, 23, 12, 0, 0).astimezone().timestamp()
FRONT, CORE, MODEL = 100, 101, 102


def line(seconds: float, text: str) -> str:
    at = datetime.fromtimestamp(NOON + seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]
    return f"INFO {at} tideserve_Engine-m abc -- {text}"


LOG = "\n".join(
    [
        line(2.5, "Started initializing replica."),
        line(2.6, "model m: phase imports took 0.10 s"),
        line(3.0, "model m: phase configuration took 0.40 s"),
        line(5.0, "model m: phase weights_and_kv_cache took 2.00 s"),
        line(5.5, "model m: phase serving_layer took 0.50 s"),
        line(5.7, "model m: phase warm_up took 0.20 s"),
        line(5.7, "model m: phase data_plane took 0.00 s"),
        line(5.7, "model m: ready after 3.70 s (process 0.50 s, imports 0.10 s)"),
    ]
)


def span(process: int, name: str, begin: float, end: float, trace: str = "t") -> Span:
    return Span(trace, process, name, NOON + begin, NOON + end)


SPANS = (
    span(FRONT, "Overall Loading", 3.2, 5.0),
    span(CORE, "EngineCoreProc init", 3.6, 5.0),
    span(CORE, "Executor init", 3.7, 4.5),
    span(CORE, "Load model", 4.0, 4.5),
    span(CORE, "Load weights", 4.1, 4.4),
    span(CORE, "Allocate KV cache", 4.6, 4.9),
    span(CORE, "Warmup (CPU)", 4.9, 5.0),
    span(CORE, "something new", 4.91, 4.92),
)
CREATED = {FRONT: NOON + 2.0, CORE: NOON + 3.4}


def seconds(phases: list[Phase]) -> dict[tuple[str, str], Any]:
    found: dict[tuple[str, str], float] = {}
    for phase in phases:
        found[phase.row, phase.name] = found.get((phase.row, phase.name), 0.0) + phase.seconds
    return {key: pytest.approx(value, abs=0.002) for key, value in found.items()}


def test_the_innermost_span_has_the_time() -> None:
    outer, inner = Phase(ENGINE_CORE, "outer", 0.0, 10.0), Phase(ENGINE_CORE, "inner", 2.0, 5.0)

    assert flatten([inner, outer]) == [
        Phase(ENGINE_CORE, "outer", 0.0, 2.0),
        inner,
        Phase(ENGINE_CORE, "outer", 5.0, 10.0),
    ]


def test_rows_do_not_hide_each_other_and_gaps_stay_open() -> None:
    phases = [Phase(ENGINE_CORE, "weights", 1.0, 2.0), Phase(FRONT_END, "a", 0.0, 3.0)]
    phases.append(Phase(FRONT_END, "b", 4.0, 5.0))

    assert flatten(phases) == [phases[1], phases[2], phases[0]]


def test_neighbours_of_one_name_become_one() -> None:
    both = [Phase(ENGINE_CORE, "model", 0.0, 1.0), Phase(ENGINE_CORE, "model", 1.0, 2.0)]

    assert flatten(both) == [Phase(ENGINE_CORE, "model", 0.0, 2.0)]


def test_a_replica_logs_its_phases() -> None:
    found = since(NOON, own_phases(LOG))

    assert [phase.name for phase in found] == [
        "imports", "configuration", "tokenizer", "serving layer", "warm-up", "data plane"
    ]  # fmt: skip
    assert [phase.end for phase in found] == pytest.approx([2.6, 3.0, 5.0, 5.5, 5.7, 5.7], abs=0.002)


def test_a_replica_logs_when_its_engine_core_is_up() -> None:
    assert core_up(LOG) == pytest.approx(NOON + 5.0, abs=0.002)
    assert core_up(line(2.6, "model m: phase imports took 0.10 s")) is None


def test_a_start_from_zero_has_no_second_without_a_phase() -> None:
    found = tideserve_phases(NOON, NOON + 1.0, LOG, SPANS, Observed(CREATED), NOON + 6.0)

    assert seconds(found) == {
        (REQUEST, "held until the decision"): 1.0,
        (REQUEST, "Ray starts the replica"): 1.0,
        (REQUEST, "ready to first token"): 0.3,
        (FRONT_END, "process"): 0.5,
        (FRONT_END, "imports"): 0.1,
        (FRONT_END, "configuration"): 0.4,
        (FRONT_END, "tokenizer"): 0.2,
        (FRONT_END, "waits for the engine core"): 1.8,
        (FRONT_END, "serving layer"): 0.5,
        (FRONT_END, "warm-up"): 0.2,
        (ENGINE_CORE, "process"): 0.2,
        (ENGINE_CORE, "imports"): 0.2,
        (ENGINE_CORE, "engine core"): 0.2,
        (ENGINE_CORE, "executor"): 0.3,
        (ENGINE_CORE, "model"): 0.2,
        (ENGINE_CORE, "weights"): 0.3,
        (ENGINE_CORE, "KV cache"): 0.3,
        (ENGINE_CORE, "warm-up"): 0.1,
    }
    path = [phase for phase in found if phase.row in (REQUEST, FRONT_END)]
    assert sum(phase.seconds for phase in path) == pytest.approx(6.0, abs=0.002)


def test_a_worker_that_ray_had_at_hand_takes_no_time_to_start() -> None:
    seen = Observed({FRONT: NOON - 30.0, CORE: NOON + 3.4})

    found = seconds(tideserve_phases(NOON, NOON + 1.0, LOG, SPANS, seen, NOON + 6.0))

    assert (FRONT_END, "process") not in found
    assert found[REQUEST, "Ray starts the replica"] == 1.5


def test_without_a_decision_the_command_itself_is_the_first_phase() -> None:
    found = seconds(tideserve_phases(NOON, None, LOG, SPANS, Observed(CREATED), NOON + 6.0))

    assert found[REQUEST, "tideserve run"] == 2.0
    assert (REQUEST, "held until the decision") not in found


def test_inspecting_a_model_is_told_apart_from_the_configuration_and_by_its_parent() -> None:
    inspections = ((FRONT, NOON + 2.7, NOON + 2.9), (999, NOON + 2.6, NOON + 2.7))
    seen = Observed(CREATED, inspections)

    found = seconds(tideserve_phases(NOON, NOON + 1.0, LOG, SPANS, seen, NOON + 6.0))

    assert found[FRONT_END, "model inspection"] == 0.2
    assert found[FRONT_END, "configuration"] == 0.2


def test_vllm_serve_begins_with_its_process_and_may_have_a_worker() -> None:
    log = f"INFO of something\n{NOON + 2.0:.3f} vLLM server version 0.32.0, serving model m\n"
    spans = [*SPANS[:3], span(MODEL, "Worker init", 4.0, 4.2), span(MODEL, "Load model", 4.2, 4.5)]
    seen = Observed({**CREATED, MODEL: NOON + 3.8})

    found = seconds(vllm_phases(NOON, log, spans, seen, NOON + 5.5, NOON + 5.75))

    assert found[FRONT_END, "imports"] == 2.0
    assert found[FRONT_END, "configuration"] == 1.2
    assert found[FRONT_END, "serving layer"] == 0.5
    assert found[REQUEST, "ready to first token"] == 0.25
    assert found[WORKER, "imports"] == 0.2
    assert found[ENGINE_CORE, "waits for the worker"] == 0.8
    assert found[WORKER, "device"] == 0.2
    assert found[WORKER, "model"] == 0.3


def test_engines_come_in_the_order_in_which_they_were_up_and_only_whole() -> None:
    late = [span(1, "Overall Loading", 0, 9, "late"), span(2, "EngineCoreProc init", 1, 9, "late")]
    early = [span(3, "Overall Loading", 1, 8, "early"), span(4, "EngineCoreProc init", 2, 8, "early")]
    half = [span(5, "Overall Loading", 0, 7, "half")]
    request = [span(1, "llm_request", 10, 11, "request")]

    assert engines([*late, *half, *early, *request]) == [early, late]
