"""The page of a proof, in Markdown: sentences and tables for each stage."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.common.markdown import table

PAGE = "proof.md"
REHEARSAL = "**A rehearsal on a CPU: none of these figures is a GPU's.**"
Figures = Mapping[str, Any]
Blocks = list[str]
"""Paragraphs and tables."""


def to_markdown(document: Mapping[str, Any]) -> str:
    """Return the page of a proof's document. Every section says what it was measured on, and when."""
    identity = document["identity"]
    on_gpu = identity["device"] == "gpu"
    device = str(identity["gpu"]) if on_gpu else f"CPU, NO GPU ({identity['processor']})"
    facts = [f"- {name}: {value}" for name, value in identity.items() if name != "device"]
    parts = [f"# Tideserve on {device}", "\n".join(facts)]
    if not on_gpu:
        parts.append(REHEARSAL)
    for outcome in document["stages"]:
        parts += [f"## {outcome['title']}", f"*{device}, {outcome['began'][:10]}*"]
        if outcome["state"] == "done":
            parts += _READERS[outcome["stage"]](outcome["figures"])
        else:
            word = "Not measured" if outcome["state"] == "cannot" else "Failed"
            parts.append(f"{word}: {outcome['why']}.")
        if left := outcome["figures"].get("left out"):
            parts.append(f"Left out: {left}.")
    if document["not measured"]:
        parts.append(f"Not measured yet: {', '.join(document['not measured'])}.")
    return "\n\n".join(parts) + "\n"


def _model(found: Figures) -> Blocks:
    size = f", {found['parameters'] / 1e6:,.1f} million parameters" if "parameters" in found else ""
    return [f"Served: {found['title']}{size}."]


def _smoke(found: Figures) -> Blocks:
    return [
        f"`tideserve run` is ready after {found['start_s']:.0f} s ({_phases(found)}). "
        f"The first chat: {_chat(found['chat'])}."
    ]


def _eager_start(found: Figures) -> Blocks:
    rows = [[kind, *map(_chat, chats)] for kind, chats in found["chats"].items()]
    return [
        f"`tideserve run` with `enforce_eager` is ready after {found['start_s']:.0f} s. Each kind of "
        f"request is sent twice. Replicas lost meanwhile: {found['lost_replicas']}.",
        table(("kind", "first", "second"), rows),
    ]


def _lost_replica(found: Figures) -> Blocks:
    return [
        f"SIGKILL of the replica at 0 s. Its engine core ends at {found['core_ended_s']:.1f} s. The engine "
        f"core of its successor runs at {found['successor_core_s']:.1f} s and has answered at "
        f"{found['answered_s']:.1f} s ({_phases(found)}).",
        f"The first chat with `top_p` after the loss: {_chat(found['chat'])}.",
    ]


def _phases(found: Figures) -> str:
    listed = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in found["phases_s"].items())
    return listed or "phases unknown"


def _chat(one: Figures) -> str:
    if "error" in one:
        return f"failed: {one['error']}"
    longest = _ms(one["longest_gap_s"])
    return f"first token after {_ms(one['first_token_s'])}, longest gap {longest}"


_FIT_HEADER = ("step time", "base", "per sequence", "per KV token", "per prefill token", "median error")


def _step_time(found: Figures) -> Blocks:
    fitted, shipped, learned = found["fit"], found["shipped"], found["learned"]
    rows = [_fit_row("fitted", fitted["coefficients"], fitted)]
    if learned is not None:
        rows.append(_fit_row("learned by the policy meanwhile", learned["coefficients"], learned))
    return [
        f"The fit is off by {fitted['median_relative_error']:.1%} in the median and "
        f"{fitted['p90_relative_error']:.1%} at the 90th percentile. It rests on {fitted['samples']} means "
        f"of a second's steps, with {fitted['outliers']} outliers.",
        f"The shipped profile `{shipped['name']}` is off by {shipped['median_relative_error']:.1%} in "
        f"the median. Its step times are {shipped['median_ratio']:.2f} times the measured ones.",
        table(_FIT_HEADER, rows),
    ]


def _fit_row(name: str, coefficients: Figures, errors: Figures) -> list[str]:
    return [
        name,
        f"{coefficients['base_s'] * 1e3:.3f} ms",
        f"{coefficients['per_sequence_s'] * 1e3:.4f} ms",
        f"{coefficients['per_kv_token_s'] * 1e6:.4f} µs",
        f"{coefficients['per_prefill_token_s'] * 1e6:.2f} µs",
        f"{errors['median_relative_error']:.1%}",
    ]


def _capacity(found: Figures) -> Blocks:
    knee, targets = found["knee"], found["targets"]
    asked = (
        f"{found['prompt_tokens']} + {found['output_tokens']} tokens, P95 TTFT within "
        f"{targets['ttft_target_s'] * 1e3:g} ms and ITL within {targets['itl_target_s'] * 1e3:g} ms"
    )
    if knee is None:
        text = f"An empty replica misses both targets ({asked})."
    elif not knee["rps"]:
        text = f"No rate kept them; the lowest missed {knee['bound']} ({asked})."
    else:
        text = f"One replica serves {knee['rps']:.3g} requests/s ({asked})."
        text += f" The next rate missed {knee['bound']}."
    rows = [
        [f"{rate['rps']:.3g}", _ms(rate["ttft_s"]), _ms(rate["itl_s"]), f"{rate['attained']:.1%}",
         rate["miss"] or "none"]
        for rate in found["rates"]
    ]  # fmt: skip
    return [
        f"{text} The policy's formula gives {found['formula_rps']:.3g} requests/s.",
        table(("requests/s", "TTFT P95", "ITL P95", "within both", "missed"), rows),
    ]


def _slo(found: Figures) -> Blocks:
    rate = found["largest_rate_that_meets_it"]
    goal = "TTFT P50/P95/P99 < 100/200/500 ms, ITL < 15/25/40 ms, 100 tokens < 2/3/5 s"
    rows = [
        [f"{one['rps']:.3g}", *_slo_cells(one), "yes" if one["meets_slos"] else "no"]
        for one in found["tried"]
    ]
    header = ("requests/s", "TTFT P50/P95/P99", "ITL P50/P95/P99", "100 tokens P50/P95/P99", "meets it")
    found_rate = (
        f"The largest rate tried that meets the table ({goal}): {rate:.3g} requests/s." if rate else ""
    )
    return [found_rate or f"No rate tried meets the table ({goal}).", table(header, rows)]


def _slo_cells(one: Figures) -> list[str]:
    cells = []
    for name, scale, unit in (("TTFT", 1e3, "ms"), ("ITL", 1e3, "ms"), ("hundred tokens", 1.0, "s")):
        at = one["latencies_s"].get(name)
        values = [] if at is None else [at[key] for key in ("p50", "p95", "p99")]
        shown = "/".join("never" if value is None else f"{value * scale:.3g}" for value in values)
        cells.append(f"{shown} {unit}" if values else "-")
    return cells


def _prefill_groups(found: Figures) -> Blocks:
    rows = [
        [
            row["how"], f"{row['rps']:.3g}", f"{row['late_tokens']:.1%}",
            _ms(row["latencies_s"]["ITL"]["p95"]), _ms(row["latencies_s"]["TTFT"]["p50"]),
            _ms(row["latencies_s"]["TTFT"]["p95"]),
        ]
        for row in found["rows"]
    ]  # fmt: skip
    text = [f"A token is late if it comes more than {found['itl_target_s'] * 1e3:g} ms after the one before."]
    if "replicas" in found:
        rates = [found["capacity_rps"][name] for name in ("on", "off")]
        on, off = ("none" if rps is None else f"{rps:.3g} requests/s" for rps in rates)
        text.append(
            f"The largest rate tried at which {found['replicas']} replicas have at most 5 % of late tokens: "
            f"{on} with prefill groups, {off} without."
        )
    return [*text, table(("load", "requests/s", "late tokens", "ITL P95", "TTFT P50", "TTFT P95"), rows)]


def _prefix_cache(found: Figures) -> Blocks:
    rows = [
        [words, *(_ms(found[name]["latencies_s"]["TTFT"][key]) for key in ("p50", "p95", "p99"))]
        for name, words in (("nothing_shared", "nothing shared"), ("shared", "shared"))
    ]
    return [
        f"Prompts of {found['prompt_tokens']} tokens at {found['rps']:.3g} requests/s: with "
        f"{found['shared_tokens']} tokens shared, the median TTFT is {found['ttft_p50_ratio']:.2f} times "
        "as long.",
        table(("prompts", "TTFT P50", "P95", "P99"), rows),
    ]


def _cold_start(found: Figures) -> Blocks:
    rows, phases = [], []
    for system in ("tideserve", "vllm serve"):
        for way, starts in found[system].items():
            for which, one in starts.items():
                rows.append([f"{system}, {way}, {which}", f"{one['first_token_s']:.1f} s"])
                if one.get("phases_s"):
                    listed = ", ".join(f"{name} {seconds:.1f}" for name, seconds in one["phases_s"].items())
                    phases.append(f"{way}, {which}, seconds: {listed}.")
    text = (
        "Tideserve: from a request at zero replicas to its first token. `vllm serve`: from the start of its "
        "process. The first start has an empty compile cache."
    )
    return [text, *phases, table(("start", "to the first token"), rows)]


def _overhead(found: Figures) -> Blocks:
    rows = [
        [
            f"{one['concurrency']}, {one['server']}", f"{one['tokens_per_s']:,.0f}", _ms(one["ttft_p50_s"]),
            _ms(one["ttft_p95_s"]), _ms(one["itl_p50_s"]), f"{one['server_cpu_s_per_token'] * 1e6:.0f} µs",
        ]
        for one in sorted(found["measurements"], key=lambda one: one["concurrency"])
    ]  # fmt: skip
    header = ("concurrent, server", "tokens/s", "TTFT P50", "TTFT P95", "ITL P50", "CPU a token")
    return ["The same closed loop on each server, one after the other, one round.", table(header, rows)]


def _variants(found: Figures) -> Blocks:
    text, rows = [], []
    for name, one in found.items():
        if not isinstance(one, Mapping):
            continue
        if "refused" in one:
            text.append(f"{name}: vLLM refused it: {one['refused']}")
            continue
        rows.append(_fit_row(name, one["fit"]["coefficients"], one["fit"]))
        listed = ", ".join(f"{key} {value:.2f}" for key, value in one["ratios"].items())
        text.append(f"{name}, as a multiple of the plain model: {listed}.")
    return [*text, table(_FIT_HEADER, rows)] if rows else text


def _replay(found: Figures) -> Blocks:
    rows = [
        [f"{row['window']}, {row['policy']}", f"{row['gpu_seconds']:,.0f}", f"{row['attainment']:.1%}"]
        for row in found["rows"]
    ]
    minutes = f"{found['replayed_s'] / 60:g}"
    return [
        f"Simulated with the measured fleet file: the first {minutes} minutes of each window.",
        table(("window, policy", "GPU-seconds", "attained"), rows),
    ]


def _ms(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds * 1e3:,.4g} ms"


_READERS: Mapping[str, Callable[[Figures], Sequence[str]]] = {
    "model": _model,
    "smoke": _smoke,
    "eager-start": _eager_start,
    "lost-replica": _lost_replica,
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
