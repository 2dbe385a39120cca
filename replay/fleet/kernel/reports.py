"""What engine replicas report of themselves."""

from replay.fleet.kernel.compiler import entry
from replay.fleet.kernel.histograms import current_slice, read_percentiles
from replay.fleet.layout import NONE, Floats, Ints, Memory


@entry
def report(m: Memory, slots: Ints, now: float, reports: Floats) -> None:
    """Write the signals of replicas, in the order of `EngineSignals`; their means start again from zero."""
    for k in range(len(slots)):
        r = slots[k]
        rep = m.replicas[r]
        out = reports[k]
        current_slice(m, r, now)
        # Preempted ones do not count as waiting for their first token.
        q = rep.head
        while q != NONE and m.requests[q].generated:
            q = m.requests[q].next
        steps = max(rep.steps, 1.0)
        out[0] = rep.batch_size
        out[1] = rep.waiting
        out[2] = rep.context + rep.batch_size - rep.prefilling + rep.recompute_tokens
        out[3] = rep.waiting_tokens
        out[4] = now - m.requests[q].last_at if q != NONE else 0.0
        out[5] = rep.in_flight
        out[6] = rep.kv_used / m.rules[0].kv_cache_tokens
        out[7] = m.rules[0].kv_cache_tokens
        out[8] = rep.prefilled
        out[9] = rep.generated
        out[10] = rep.finished
        out[11] = rep.finished_prompt
        out[12] = rep.finished_output
        out[13] = rep.preemptions
        out[14] = rep.steps
        out[15] = rep.sum_s / steps
        out[16] = rep.sum_batch / steps
        out[17] = rep.sum_prefill / steps
        out[18] = rep.sum_kv / steps
        read_percentiles(m, r, out)
        rep.steps = rep.sum_s = rep.sum_batch = rep.sum_prefill = rep.sum_kv = 0.0
