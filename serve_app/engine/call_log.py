"""What an engine replica reports of a call: the latency figures, and the line of the request log."""

from __future__ import annotations

import time

import msgspec

from serve_app.engine.engine_call import EngineCall
from serve_app.wire.request_line import RequestLine


def with_latency(call: EngineCall, frame: bytes) -> bytes:
    """Return the final usage frame of a stream with a `latency` field; any other frame unchanged.

    Only the usage frame has an empty `choices` (`Dialect.has_usage`). The field also has the number of
    cached prompt tokens, which vLLM's usage lacks by default. For a stream that has moved, the field
    covers the tokens of all engines.
    """
    document = msgspec.json.decode(frame[len(b"data: ") :])
    usage = document.get("usage")
    if not usage:
        return frame
    tokens = usage.get("completion_tokens", 0)
    figures = latency_figures(call, call.first_token, tokens, time.perf_counter())
    figures |= engine_times(call)
    # An engine that continues a stream may also have other engines' output tokens in its cache.
    figures["cached_tokens"] = min(call.cached_tokens(), usage.get("prompt_tokens", 0))
    if call.message.continuation is not None and call.message.continuation.moves:
        figures["moves"] = call.message.continuation.moves
    document["latency"] = figures
    return b"data: " + msgspec.json.encode(document) + b"\n\n"


def log_line(call: EngineCall) -> RequestLine | None:
    """Return the log line of a call that has just ended; None if it never was in the engine.

    The tokens of engines that began the stream count as input.
    """
    if not call.sequences:
        return None
    message, begun = call.message, call.message.continuation
    # vLLM measures a first token from the arrival of its sequence, which is in Unix time.
    first_at = min(
        (
            sequence.stats.arrival_time + sequence.stats.first_token_latency
            for sequence in call.sequences
            if sequence.stats.first_token_latency > 0.0
        ),
        default=None,
    )
    ttft = None if first_at is None else round(first_at - call.arrived_at, 6)
    return RequestLine(
        arrived_at=round(call.arrived_at, 6),
        model=call.model,
        operation=message.operation,
        request_id=message.request_id,
        input_tokens=call.prompt_tokens(),
        cached_tokens=call.cached_tokens(),
        output_tokens=call.output_tokens(),
        sequences=len(call.sequences),
        ttft_s=ttft if begun is None else begun.ttft_s,
        e2e_s=round(call.waited_s, 6),
        held_s=round(message.queued_s, 6),
        status=call.status,
        outcome=call.outcome,
        trace_id=None if call.trace is None else call.trace.trace_id,
        expected_cached_tokens=message.expected_cached_tokens,
        key=call.caller.key,
        lane=call.caller.lane,
        alias=message.alias,
        adapter=call.adapter_name,
        lost_s=round(message.lost_s, 6),
    )


def latency_figures(call: EngineCall, first: float, tokens: int, now: float) -> dict[str, float | int]:
    """Return the latency figures of an answer that ends `now`, measured from the arrival at the ingress.

    Args:
        call: The call.
        first: The time of the first token by `time.perf_counter`; 0 without a token.
        tokens: The number of tokens.
        now: By `time.perf_counter`.
    """
    total = now - call.arrived
    first = first or now
    between = (now - first) / (tokens - 1) if tokens > 1 else 0.0
    lost_ms = round(call.message.lost_s * 1e3, 3)
    return {
        "cold_wait_ms": round(call.message.queued_s * 1e3, 3),
        **({"lost_ms": lost_ms} if lost_ms else {}),
        "ttft_ms": round((first - call.arrived) * 1e3, 3),
        "inter_token_ms": round(between * 1e3, 3),
        "total_time_ms": round(total * 1e3, 3),
        "tokens_generated": tokens,
        "tokens_per_second": round(tokens / total, 3) if total > 0 else 0.0,
    }


def engine_times(call: EngineCall) -> dict[str, float]:
    """Return the milliseconds in the engine's queue, of prefill and of decode, over all sequences.

    Without engine times of any sequence, it is empty.
    """
    kept = [sequence.stats for sequence in call.sequences if sequence.stats is not None]
    known = [stats for stats in kept if stats.queued_ts > 0.0]
    if not known:
        return {}
    queued, scheduled = min(one.queued_ts for one in known), min(one.scheduled_ts for one in known)
    first, last = min(one.first_token_ts for one in known), max(one.last_token_ts for one in known)
    times = {"queue_ms": scheduled - queued, "prefill_ms": first - scheduled, "decode_ms": last - first}
    return {name: round(max(0.0, spent) * 1e3, 3) for name, spent in times.items()}
