"""From spans, log lines and processes to the phases of one start. Pure; times are Unix seconds."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise

from benchmarks.cold_start.spans import Span

REQUEST, FRONT_END, ENGINE_CORE, WORKER = "request", "front end", "engine core", "worker"
"""The rows: the request's own waits, and three processes. The front end is our engine replica, or vLLM's API
server; a worker exists where the model does not run in the engine core."""
ROWS = (REQUEST, FRONT_END, ENGINE_CORE, WORKER)
WAITS, WORKER_WAITS = "waits for the engine core", "waits for the worker"

_LOADING, _CORE = "Overall Loading", "EngineCoreProc init"
_NAMES = {
    _LOADING: WAITS,
    "AsyncMPClient init": WAITS,
    _CORE: "engine core",
    "Executor init": "executor",
    "Worker init": "device",
    "Init device": "device",
    "Loading (CPU)": "model",
    "Loading (GPU)": "model",
    "Load model": "model",
    "Initialize model": "model",
    "Load weights": "weights",
    "Download weights - HF": "weights",
    "Prepare model": "memory profile",
    "Allocate KV cache": "KV cache",
    "Compile graph": "compile",
    "Inductor compilation": "compile",
    "Dynamo bytecode transform": "compile",
    "Capture model": "graphs",
}
"""What vLLM's spans are called here; those that begin with `Warmup` or end with `warmup` are `warm-up`."""
_OWN = {"weights_and_kv_cache": "tokenizer", "serving_layer": "serving layer", "warm_up": "warm-up",
        "data_plane": "data plane"}  # fmt: skip
"""What our phases are called here. Beside the engine core, `weights_and_kv_cache` loads the tokenizer."""
_LINE = re.compile(r"^\S+ (\S+ [0-9:]+,\d+) .*: phase (\w+) took ([0-9.]+) s$", re.MULTILINE)
_VERSION = re.compile(r"^([0-9.]+) vLLM(?: API)? server version", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase in one row, from `begin` to `end`."""

    row: str
    name: str
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Observed:
    """What was seen of one engine's start, apart from its spans."""

    created: Mapping[int, float]
    """When each process was created."""
    inspections: Sequence[tuple[int, float, float]] = ()
    """Processes in which vLLM inspected a model's class: their parent, and when they ran."""


def flatten(phases: Iterable[Phase]) -> list[Phase]:
    """Return disjoint phases, by row and time: where some overlap, the one that began last counts.

    So a span's time is what remains of it without the spans inside it.
    """
    found: list[Phase] = []
    by_row: dict[str, list[Phase]] = {row: [] for row in ROWS}
    for phase in phases:
        by_row[phase.row].append(phase)
    for row, mine in by_row.items():
        bounds = sorted({at for phase in mine for at in (phase.begin, phase.end)})
        for begin, end in pairwise(bounds):
            active = [phase for phase in mine if phase.begin <= begin and end <= phase.end]
            if not active:
                continue
            name = max(active, key=lambda phase: (phase.begin, -phase.end)).name
            if found and (found[-1].row, found[-1].name, found[-1].end) == (row, name, begin):
                found[-1] = replace(found[-1], end=end)
            else:
                found.append(Phase(row, name, begin, end))
    return found


def since(zero: float, phases: Iterable[Phase]) -> list[Phase]:
    """Return the phases with times that count from `zero`."""
    return [Phase(one.row, one.name, one.begin - zero, one.end - zero) for one in phases]


def engines(spans: Iterable[Span]) -> list[list[Span]]:
    """Return the spans of each engine's start, in the order in which their engine cores came up."""
    traces: dict[str, list[Span]] = {}
    for span in spans:
        traces.setdefault(span.trace, []).append(span)
    whole = [mine for mine in traces.values() if {_LOADING, _CORE} <= {span.name for span in mine}]
    return sorted(whole, key=lambda mine: _loading(mine).end)


def own_phases(log: str) -> list[Phase]:
    """Return the phases that a replica of ours has logged."""
    return [
        Phase(FRONT_END, _OWN.get(name, name), end - float(seconds), end)
        for at, name, seconds in _LINE.findall(log)
        for end in [datetime.strptime(at, "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp()]
    ]


def core_up(log: str) -> float | None:
    """Return when the engine core of the replica with this log had come up; None if it has not."""
    return next((phase.end for phase in own_phases(log) if phase.name == "tokenizer"), None)


def tideserve_phases(
    asked: float, decided: float | None, log: str, spans: Sequence[Span], seen: Observed, answered: float
) -> list[Phase]:
    """Return the phases of one replica's start.

    Args:
        asked: When the request was sent, or `tideserve run` began.
        decided: When the policy decided to start a replica; None where the configuration asks for it.
        log: The replica's log.
        spans: Those of its engine.
        seen: Its processes.
        answered: When its first token arrived.
    """
    own = own_phases(log)
    code = own[0].begin
    created = seen.created.get(_loading(spans).process, code)
    if not (decided or asked) <= created <= code:
        created = code  # Ray had a worker at hand
    ready = own[-1].end
    request = [
        Phase(REQUEST, "tideserve run", asked, created)
        if decided is None
        else Phase(REQUEST, "held until the decision", asked, decided),
        Phase(REQUEST, "Ray starts the replica", decided or created, created),
        Phase(REQUEST, "ready to first token", ready, answered),
    ]
    front = [Phase(FRONT_END, "process", created, code), *own]
    return flatten([*request, *front, *_inside(spans, seen)])


def vllm_phases(
    began: float, log: str, spans: Sequence[Span], seen: Observed, asked: float, answered: float
) -> list[Phase]:
    """Return the phases of one `vllm serve`: its log has Unix times; `asked` is when a request was sent."""
    loading = _loading(spans)
    version = _VERSION.search(log)
    imported = float(version.group(1)) if version else began
    front = [
        Phase(FRONT_END, "imports", began, imported),
        Phase(FRONT_END, "configuration", imported, loading.begin),
        Phase(FRONT_END, "serving layer", loading.end, asked),
    ]
    return flatten([*front, Phase(REQUEST, "ready to first token", asked, answered), *_inside(spans, seen)])


def _inside(spans: Sequence[Span], seen: Observed) -> list[Phase]:
    """Return the phases that vLLM tells by spans, and those of the processes that make them."""
    loading = _loading(spans)
    core = next(span for span in spans if span.name == _CORE)
    rows = {loading.process: FRONT_END, core.process: ENGINE_CORE}
    found = [
        Phase(rows.get(span.process, WORKER), name, span.begin, span.end)
        for span in spans
        if (name := _name(span)) is not None
    ]
    found += [
        Phase(FRONT_END, "model inspection", begin, end)
        for parent, begin, end in seen.inspections
        if parent == loading.process
    ]
    created = seen.created.get(core.process, core.begin)
    found += [
        Phase(ENGINE_CORE, "process", loading.begin, created),
        Phase(ENGINE_CORE, "imports", created, core.begin),
    ]
    workers = [span for span in spans if span.process not in rows]
    if workers:
        found = [replace(one, name=WORKER_WAITS) if one.name == "executor" else one for one in found]
        first = min(workers, key=lambda span: span.begin)
        created = seen.created.get(first.process, first.begin)
        found.append(Phase(WORKER, "imports", created, first.begin))
    return found


def _loading(spans: Sequence[Span]) -> Span:
    return next(span for span in spans if span.name == _LOADING)


def _name(span: Span) -> str | None:
    if span.name.startswith("Warmup") or span.name.endswith("warmup"):
        return "warm-up"
    return _NAMES.get(span.name)
