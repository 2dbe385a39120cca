"""The figures of each stage as sentences and tables, for the page and for the documentation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Figures = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """A table whose columns but the first hold numbers."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Section:
    """What one stage found."""

    stage: str
    title: str
    when: str
    """What the figures were measured on, and when."""
    text: Sequence[str]
    tables: Sequence[Table] = ()


def sections(document: Mapping[str, Any]) -> list[Section]:
    """Return a section for each stage of a proof's document, those that say most first."""
    device = device_of(document)
    found = []
    for outcome in document["stages"]:
        when = f"{device}, {outcome['began'][:10]}"
        text: Sequence[str]
        tables: Sequence[Table] = ()
        if outcome["state"] != "done":
            word = "Not measured" if outcome["state"] == "cannot" else "Failed"
            text = [f"{word}: {outcome['why']}."]
        else:
            text, tables = _READERS[outcome["stage"]](outcome["figures"])
        if left := outcome["figures"].get("left out"):
            text = [*text, f"Left out: {left}."]
        found.append(Section(outcome["stage"], outcome["title"], when, text, tables))
    return found


def device_of(document: Mapping[str, Any]) -> str:
    """Return the name of what was measured; a CPU says so in capitals."""
    identity = document["identity"]
    return str(identity["gpu"]) if identity["device"] == "gpu" else f"CPU, NO GPU ({identity['processor']})"


_Read = tuple[Sequence[str], Sequence[Table]]


def _model(found: Figures) -> _Read:
    size = f", {found['parameters'] / 1e6:,.1f} million parameters" if "parameters" in found else ""
    return [f"Served: {found['title']}{size}."], ()


def _step_time(found: Figures) -> _Read:
    law, shipped, learned = found["law"], found["shipped"], found["learned"]
    rows = [_law_row("fitted", law["coefficients"], law)]
    if learned is not None:
        rows.append(_law_row("learned by the policy meanwhile", learned["coefficients"], learned))
    text = [
        f"The fit is off by {_percent(law['median_relative_error'])} in the median and "
        f"{_percent(law['p90_relative_error'])} at the 90th percentile, over {law['samples']} means of a "
        f"second's steps ({law['outliers']} outliers).",
        f"The shipped profile `{shipped['name']}` is off by {_percent(shipped['median_relative_error'])} in "
        f"the median; it takes steps for {shipped['median_ratio']:.2f} times as long as they are.",
    ]
    header = ("law", "base", "per sequence", "per KV token", "per prefill token", "median error")
    return text, [Table(header, rows)]


def _law_row(name: str, coefficients: Figures, errors: Figures) -> list[str]:
    return [
        name,
        f"{coefficients['base_s'] * 1e3:.3f} ms",
        f"{coefficients['per_sequence_s'] * 1e3:.4f} ms",
        f"{coefficients['per_kv_token_s'] * 1e6:.4f} µs",
        f"{coefficients['per_prefill_token_s'] * 1e6:.2f} µs",
        _percent(errors["median_relative_error"]),
    ]


def _capacity(found: Figures) -> _Read:
    knee, targets = found["knee"], found["targets"]
    asked = (
        f"{found['prompt_tokens']} + {found['output_tokens']} tokens, P95 TTFT within "
        f"{targets['ttft_target_s'] * 1e3:g} ms and ITL within {targets['itl_target_s'] * 1e3:g} ms"
    )
    if knee is None:
        text = [f"An empty replica misses both targets ({asked})."]
    elif not knee["rps"]:
        text = [f"No rate was held, the lowest missed {knee['bound']} ({asked})."]
    else:
        text = [
            f"One replica holds {knee['rps']:.3g} requests/s ({asked}); the next rate missed {knee['bound']}."
        ]
    text.append(f"The policy's formula gives {found['formula_rps']:.3g} requests/s.")
    rows = [
        [
            f"{rate['rps']:.3g}",
            _ms(rate["ttft_s"]),
            _ms(rate["itl_s"]),
            _percent(rate["attained"]),
            rate["miss"] or "held",
        ]
        for rate in found["rates"]
    ]
    return text, [Table(("requests/s", "TTFT P95", "ITL P95", "within both", "missed"), rows)]


def _slo(found: Figures) -> _Read:
    rate = found["largest_rate_that_meets_it"]
    table = "TTFT P50/P95/P99 < 100/200/500 ms, ITL < 15/25/40 ms, 100 tokens < 2/3/5 s"
    text = [
        f"The largest rate tried that meets the table ({table}): {rate:.3g} requests/s."
        if rate
        else f"No rate tried meets the table ({table})."
    ]
    rows = [
        [f"{one['rps']:.3g}", *_slo_cells(one), "yes" if one["meets_slos"] else "no"]
        for one in found["tried"]
    ]
    header = ("requests/s", "TTFT P50/P95/P99", "ITL P50/P95/P99", "100 tokens P50/P95/P99", "meets it")
    return text, [Table(header, rows)]


def _slo_cells(one: Figures) -> list[str]:
    cells = []
    for name, scale, unit in (("TTFT", 1e3, "ms"), ("ITL", 1e3, "ms"), ("hundred tokens", 1.0, "s")):
        at = one["latencies_s"].get(name)
        cells.append("-" if at is None else f"{'/'.join(_scaled(at, scale))} {unit}")
    return cells


def _scaled(at: Figures, scale: float) -> list[str]:
    values = [at[key] for key in ("p50", "p95", "p99")]
    return ["never" if value is None else f"{value * scale:.3g}" for value in values]


def _prefill_groups(found: Figures) -> _Read:
    rows = [
        [
            row["how"], f"{row['rps']:.3g}", _percent(row["late_tokens"]),
            _ms(row["latencies_s"]["ITL"]["p95"]), _ms(row["latencies_s"]["TTFT"]["p50"]),
            _ms(row["latencies_s"]["TTFT"]["p95"]),
        ]
        for row in found["rows"]
    ]  # fmt: skip
    text = [f"A token is late if it comes more than {found['itl_target_s'] * 1e3:g} ms after the one before."]
    if "replicas" in found:
        on, off = (found["capacity_rps"][how] for how in ("on", "off"))
        text.append(
            f"The largest rate tried at which {found['replicas']} replicas have at most 5 % of late tokens: "
            f"{_rate(on)} with prefill groups, {_rate(off)} without."
        )
    return text, [Table(("load", "requests/s", "late tokens", "ITL P95", "TTFT P50", "TTFT P95"), rows)]


def _prefix_cache(found: Figures) -> _Read:
    rows = [
        [words, *(_ms(found[name]["latencies_s"]["TTFT"][key]) for key in ("p50", "p95", "p99"))]
        for name, words in (("nothing_shared", "nothing shared"), ("shared", "shared"))
    ]
    text = [
        f"Prompts of {found['prompt_tokens']} tokens at {found['rps']:.3g} requests/s: with "
        f"{found['shared_tokens']} tokens shared, the median TTFT is {found['ttft_p50_ratio']:.2f} times "
        "as long."
    ]
    return text, [Table(("prompts", "TTFT P50", "P95", "P99"), rows)]


def _cold_start(found: Figures) -> _Read:
    rows, phases = [], []
    for system in ("tideserve", "vllm serve"):
        for way, starts in found[system].items():
            for which, one in starts.items():
                rows.append([f"{system}, {way}, {which}", f"{one['first_token_s']:.1f} s"])
                if "phases_s" in one:
                    told = ", ".join(f"{name} {seconds:.1f}" for name, seconds in one["phases_s"].items())
                    phases.append(f"{way}, {which}, seconds: {told}.")
    text = [
        "Tideserve: from a request at zero replicas to its first token. `vllm serve`: from the start of its "
        "process. First is with an empty compile cache.",
        *phases,
    ]
    return text, [Table(("start", "to the first token"), rows)]


def _overhead(found: Figures) -> _Read:
    rows = [
        [
            f"{one['concurrency']}, {one['server']}", f"{one['tokens_per_s']:,.0f}", _ms(one["ttft_p50_s"]),
            _ms(one["ttft_p95_s"]), _ms(one["itl_p50_s"]), f"{one['server_cpu_s_per_token'] * 1e6:.0f} µs",
        ]
        for one in sorted(found["measurements"], key=lambda one: one["concurrency"])
    ]  # fmt: skip
    header = ("concurrent, server", "tokens/s", "TTFT P50", "TTFT P95", "ITL P50", "CPU a token")
    return ["The same closed loop on each, one after the other, one round."], [Table(header, rows)]


def _variants(found: Figures) -> _Read:
    text, rows = [], []
    for name, one in found.items():
        if not isinstance(one, Mapping):
            continue
        if "refused" in one:
            text.append(f"{name}: vLLM refused it: {one['refused']}")
        else:
            rows.append(_law_row(name, one["law"]["coefficients"], one["law"]))
            told = ", ".join(f"{key} {value:.2f}" for key, value in one["ratios"].items())
            text.append(f"{name}: times the plain model's: {told}.")
    header = ("variant", "base", "per sequence", "per KV token", "per prefill token", "median error")
    return text, [Table(header, rows)] if rows else []


def _replay(found: Figures) -> _Read:
    rows = [
        [f"{row['window']}, {row['policy']}", f"{row['gpu_seconds']:,.0f}", _percent(row["attainment"])]
        for row in found["rows"]
    ]
    minutes = f"{found['replayed_s'] / 60:g}"
    text = [f"Simulated with the measured fleet file: the first {minutes} minutes of each window."]
    return text, [Table(("window, policy", "GPU-seconds", "attained"), rows)]


def _rate(rps: float | None) -> str:
    return "none" if rps is None else f"{rps:.3g} requests/s"


def _ms(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds * 1e3:,.4g} ms"


def _percent(share: float) -> str:
    return f"{share:.1%}"


_READERS: Mapping[str, Callable[[Figures], _Read]] = {
    "model": _model,
    "step-time": _step_time,
    "capacity": _capacity,
    "slo": _slo,
    "prefill-groups": _prefill_groups,
    "prefix-cache": _prefix_cache,
    "cold-start": _cold_start,
    "overhead": _overhead,
    "quantization": _variants,
    "tensor-parallel": _variants,
    "replay": _replay,
}
