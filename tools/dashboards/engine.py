"""The engines: their batches and steps, the KV cache, their queues, the GPUs."""

from __future__ import annotations

from functools import partial

from tools.dashboards.colours import ARRIVALS, READY
from tools.dashboards.dashboard import Dashboard, Row
from tools.dashboards.panels import PER_MINUTE, TOKENS_PER_SECOND, Line, Panel, Query, coloured, stat
from tools.dashboards.promql import SHOWN, cluster, counted, or_zero, ours, per_minute, rate, ratio, total
from tools.dashboards.targets import ITL_S, line_at, worse_above

_MODEL, _REPLICA = ("model",), ("replica",)
_GPU = ("pod", "instance", "GpuIndex")
_STEPS = "llm_steps_total"
_NO_ENGINE = "no engine runs"
_NO_GPU = "no GPU is reported"
_KV_FULL = 0.9


def _per_step(counter: str, by: tuple[str, ...] = ()) -> str:
    return ratio(rate(ours(counter), by), rate(ours(_STEPS), by))


_stat = partial(stat, width=3, empty=_NO_ENGINE)

_STATS = (
    _stat(
        "Fullest KV cache",
        total(ours("llm_kv_cache_usage_ratio"), how="max"),
        "percentunit",
        "Share in use in the replica where most is. From 90 % on, sequences are preempted and prefilled "
        "again: more replicas, a smaller max_num_seqs, or shorter contexts.",
        worse_above(_KV_FULL, 0.97),
    ),
    _stat(
        "Running",
        or_zero(total(ours("llm_running_requests"))),
        "short",
        "Requests in the batches of all replicas.",
    ),
    _stat(
        "Queued",
        or_zero(total(ours("llm_queue_depth"))),
        "short",
        "Requests that wait in engines. A queue that stands makes the policy add replicas.",
    ),
    _stat(
        "Mean batch",
        _per_step("llm_step_sequences_total"),
        "short",
        "Sequences that decode in a step, over all replicas.",
        empty="no steps",
    ),
    _stat(
        "Mean step",
        _per_step("llm_step_seconds_total"),
        "s",
        f"Time of one engine step: about the time between two tokens. The target is {1000 * ITL_S:g} ms.",
        worse_above(ITL_S),
        empty="no steps",
    ),
    _stat(
        "Prefix hits",
        ratio(
            counted(ours("llm_prefix_cache_hits_total"), SHOWN),
            counted(ours("llm_prefix_cache_queries_total"), SHOWN),
        ),
        "percentunit",
        "Share of the prompt tokens in the time shown that the prefix cache had, which need no prefill.",
        empty="no traffic",
        over_range=True,
    ),
    _stat(
        "Preemptions",
        or_zero(counted(ours("llm_preemptions_total"), SHOWN)),
        "short",
        "Sequences put back for lack of KV cache in the time shown. Each is prefilled again, a pause in "
        "its stream.",
        worse_above(1),
        over_range=True,
        decimals=0,
    ),
    _stat(
        "GPU use",
        f"avg({cluster('ray_node_gpus_utilization')}) / 100",
        "percentunit",
        "Mean share of time in which the GPUs of the namespaces chosen had work; not by model.",
        empty=_NO_GPU,
    ),
)

_BATCHES = (
    Panel(
        "Batch",
        "Sequences that decode in a step, in the mean over a model's replicas; dashed, the most that fit "
        "(max_num_seqs). Near it requests queue, however free the KV cache is.",
        "short",
        (
            Query(_per_step("llm_step_sequences_total", _MODEL), "{{model}}"),
            Query(f"avg({ours('llm_max_num_seqs')})", "limit"),
        ),
        lines={"limit": Line(ARRIVALS, dashed=True)},
    ),
    Panel(
        "Step time",
        "Time of one engine step, in the mean. It grows with the batch, the context and the prefills in "
        f"it. The dashed line is the ITL target, {1000 * ITL_S:g} ms.",
        "s",
        (Query(_per_step("llm_step_seconds_total", _MODEL), "{{model}}"),),
        steps=line_at(ITL_S),
    ),
    Panel(
        "Busy",
        "Share of time in which a model's replicas were in a step. Near 100 % is normal while anything "
        "decodes; low with a queue means that something other than the GPU holds the engine up.",
        "percentunit",
        (
            Query(
                ratio(
                    rate(ours("llm_step_seconds_total"), _MODEL),
                    f"count by (model) ({ours('llm_running_requests')})",
                ),
                "{{model}}",
            ),
        ),
        maximum=1,
        empty=_NO_ENGINE,
    ),
    Panel(
        "Tokens",
        "Tokens prefilled in steps (those from the prefix cache are not) and generated, per second, all "
        "replicas.",
        TOKENS_PER_SECOND,
        (
            Query(or_zero(rate(ours("llm_step_prefill_tokens_total"))), "prefilled"),
            Query(or_zero(rate(ours("llm_completion_tokens_total"))), "generated"),
        ),
        lines=coloured({"prefilled": ARRIVALS, "generated": READY}),
    ),
    Panel(
        "Prefill in a step",
        "Prompt tokens in a step, in the mean. Much of it lengthens the steps of everybody who decodes: ITL. "
        "max_num_batched_tokens bounds it.",
        "short",
        (Query(_per_step("llm_step_prefill_tokens_total", _MODEL), "{{model}}"),),
    ),
    Panel(
        "Context in a step",
        "Tokens in the KV cache of the sequences of a step, in the mean: what attention reads.",
        "short",
        (Query(_per_step("llm_step_kv_tokens_total", _MODEL), "{{model}}"),),
    ),
)

_CACHE = (
    Panel(
        "KV cache",
        "Share in use, by replica. One far above the others has the long contexts. The dashed line is where "
        "preemptions come near.",
        "percentunit",
        (Query(total(ours("llm_kv_cache_usage_ratio"), _REPLICA, "max"), "{{replica}}"),),
        steps=line_at(_KV_FULL),
        maximum=1,
        empty=_NO_ENGINE,
    ),
    Panel(
        "Preemptions",
        "Sequences put back for lack of KV cache, per minute, by model. More than a few: more replicas, "
        "fewer sequences (max_num_seqs), or more memory for the cache.",
        PER_MINUTE,
        (Query(per_minute(ours("llm_preemptions_total"), _MODEL), "{{model}}"),),
        empty="none",
    ),
    Panel(
        "Prefix cache hits",
        "Share of prompt tokens that the cache had, by model. Low with shared system prompts: they differ "
        "early, or the cache is too full to keep them.",
        "percentunit",
        (
            Query(
                ratio(
                    rate(ours("llm_prefix_cache_hits_total"), _MODEL),
                    rate(ours("llm_prefix_cache_queries_total"), _MODEL),
                ),
                "{{model}}",
            ),
        ),
        maximum=1,
    ),
)

_QUEUES = (
    Panel(
        "Queue by replica",
        "Requests that wait in each engine. One that stands out is stuck, or new and late; all of them: "
        "load.",
        "short",
        (Query(total(ours("llm_queue_depth"), _REPLICA), "{{replica}}"),),
        empty=_NO_ENGINE,
    ),
    Panel(
        "Running by replica",
        "Requests in each engine's batch. They should be about equal; a replica at 0 beside busy ones "
        "costs money.",
        "short",
        (Query(total(ours("llm_running_requests"), _REPLICA), "{{replica}}"),),
        empty=_NO_ENGINE,
    ),
    Panel(
        "Prompt tokens waiting",
        "Prompt tokens of requests not yet through prefill, by replica: by the pace of prefill, the wait "
        "ahead.",
        "short",
        (Query(total(ours("llm_waiting_tokens"), _REPLICA), "{{replica}}"),),
        empty=_NO_ENGINE,
    ),
)

_GPUS = (
    Panel(
        "GPU use",
        "Share of time in which each GPU had work. High is no trouble by itself; low with a standing queue "
        "is.",
        "percent",
        (Query(total(cluster("ray_node_gpus_utilization"), _GPU, "max"), "{{pod}} {{GpuIndex}}"),),
        width=12,
        maximum=100,
        empty=_NO_GPU,
    ),
    Panel(
        "GPU memory",
        "Memory in use, by GPU. vLLM takes its share (gpu_memory_utilization) at the start and keeps it: a "
        "flat line is right, a rising one is something else on that GPU.",
        "mbytes",
        (Query(total(cluster("ray_node_gram_used"), _GPU, "max"), "{{pod}} {{GpuIndex}}"),),
        width=12,
        empty=_NO_GPU,
    ),
)

DASHBOARD = Dashboard(
    name="engine",
    title="Tideserve / Engine",
    text="Batches, steps, KV cache and queues of the replicas, and the GPUs under them.",
    rows=(
        Row("", _STATS),
        Row("Batches and steps", _BATCHES),
        Row("KV cache", _CACHE),
        Row("Queues", _QUEUES),
        Row("GPUs", _GPUS),
    ),
)
