"""Situations, as series, and what the dashboards' panels have to show of them, worked out by hand."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.kubernetes.dashboards_queries import Values

SCRAPE_S = 15
HOUR = 3600 // SCRAPE_S
"""Samples of an hour."""
DAY = 24 * HOUR


@dataclass(frozen=True, slots=True)
class Case:
    """A situation, and what panels show of it, by (dashboard, place, legend) and then by labels.

    Series are in promtool's notation: `a+bxn` counts up n times by b, `_` is no sample.
    """

    name: str
    series: Mapping[str, str]
    at_s: int
    shows: Mapping[tuple[str, str, str], Mapping[str, float]]
    values: Values = field(default_factory=Values)


def histogram(name: str, labels: str, samples: Mapping[str, str]) -> dict[str, str]:
    """The series of one, by upper bounds; `+Inf` is its count as well."""
    buckets = {f'{name}_bucket{{{labels}, le="{le}"}}': course for le, course in samples.items()}
    return {**buckets, f"{name}_count{{{labels}}}": samples["+Inf"]}


def stat(dashboard: str, title: str) -> tuple[str, str, str]:
    """A panel of one number, whose series is called as it is."""
    return dashboard, title, title


A = 'namespace="n", pod="p1", model="a", replica="r1"'
B = 'namespace="n", pod="p2", model="a", replica="r2"'
C = 'namespace="n", pod="p3", model="a", replica="r3"'
POLICY = 'namespace="n", pod="h1", model="a"'
POLICY_AFTER = 'namespace="n", pod="h2", model="a"'
POLICY_OF_B = 'namespace="n", pod="h1", model="b"'
NOBODY: dict[str, float] = {}

FIRST_REQUESTS = Case(
    "the first requests of a new replica count, though their series begin with them",
    {
        **histogram("llm_user_ttft_seconds", f'{A}, cold="false"', {"0.2": "0+9x300", "+Inf": "0+10x300"}),
        # Five at once, all late, and never one more.
        **histogram(
            "llm_user_ttft_seconds", f'{B}, cold="true"', {"0.2": "_x200 0x100", "+Inf": "_x200 5x100"}
        ),
        f'llm_errors_total{{{B}, type="engine_error"}}': "_x298 1x2",
    },
    300 * SCRAPE_S,
    {
        stat("service", "TTFT within 200 ms"): {"{}": 9 * HOUR / (10 * HOUR + 5)},
        ("service", "Engine errors", "{{type}}"): {'{type="engine_error"}': 1},
    },
)
QUANTILES = Case(
    "quantiles are of all replicas together",
    {
        **histogram(
            "llm_inter_token_seconds",
            A,
            {"0.01": "0+80x40", "0.02": "0+80x40", "0.025": "0+80x40", "+Inf": "0+80x40"},
        ),
        **histogram(
            "llm_inter_token_seconds",
            B,
            {"0.01": "0x40", "0.02": "0+10x40", "0.025": "0+20x40", "+Inf": "0+20x40"},
        ),
    },
    600,
    {
        # 80 of 100 within 10 ms, 90 within 20, all within 25.
        ("service", "ITL", "P50"): {"{}": 0.01 * 50 / 80},
        ("service", "ITL", "P95"): {"{}": 0.0225},
        ("service", "ITL P95 by model", "{{model}}"): {'{model="a"}': 0.0225},
        stat("service", "ITL within 25 ms"): {"{}": 1},
    },
)
NO_TRAFFIC = Case(
    "without traffic there is nothing to see, and nothing is 0 by 0",
    {
        **histogram("llm_user_ttft_seconds", f'{A}, cold="false"', {"0.2": "7x300", "+Inf": "9x300"}),
        **histogram("llm_inter_token_seconds", A, {"0.025": "7x300", "+Inf": "9x300"}),
        f'llm_responses_total{{{A}, outcome="ok"}}': "5x300",
        f"llm_arrivals_total{{{A}}}": "5x300",
        f"llm_steps_total{{{A}}}": "5x300",
        f"llm_step_sequences_total{{{A}}}": "5x300",
    },
    300 * SCRAPE_S,
    {
        stat("service", "TTFT within 200 ms"): NOBODY,
        stat("service", "Succeeded"): NOBODY,
        ("service", "TTFT, warm", "P95"): NOBODY,
        ("service", "ITL", "P99"): NOBODY,
        ("service", "Where TTFT goes", "warm TTFT"): NOBODY,
        ("service", "Failed by model", "{{model}}"): NOBODY,
        stat("engine", "Mean batch"): NOBODY,
        stat("cost", "Per million generated"): NOBODY,
        stat("service", "Requests"): {"{}": 0},
        stat("service", "Held"): {"{}": 0},
    },
)
OUTCOMES = Case(
    "wrong requests and clients that left are no failures",
    {
        f'llm_responses_total{{{A}, outcome="{outcome}"}}': f"0+{count}x300"
        for outcome, count in {
            "ok": 96,
            "rejected": 3,
            "error": 1,
            "client_error": 50,
            "abandoned": 50,
        }.items()
    },
    300 * SCRAPE_S,
    {
        stat("service", "Succeeded"): {"{}": 0.96},
        ("service", "Failed by model", "{{model}}"): {'{model="a"}': 0.04},
    },
)
INTERRUPTED = Case(
    "neither a restart nor a scrape that failed makes a jump",
    {
        f"llm_arrivals_total{{{A}}}": "0+30x20 0+30x20",
        f'llm_rejected_total{{{A}, reason="queue_full"}}': "0+10x20 stale 220+10x20",
    },
    # The failed scrape is where the window begins.
    21 * SCRAPE_S + 60,
    {
        stat("service", "Requests"): {"{}": 2},
        ("service", "Refusals", "{{reason}}"): {'{reason="queue_full"}': 40},
    },
)
DECISIONS = Case(
    "a decision is marked once, with what was binding",
    {
        f'llm_autoscaling_decisions_total{{{POLICY}, direction="up"}}': "0x9 1x9",
        f'llm_autoscaling_decisions_total{{{POLICY}, direction="down"}}': "_x10 1x9",
        f'llm_autoscaling_binding{{{POLICY}, term="queue"}}': "0x9 1x9",
        f'llm_autoscaling_binding{{{POLICY}, term="idle"}}': "1x9 0x9",
    },
    10 * SCRAPE_S,
    {
        ("autoscaling", "annotation Decisions", ""): {
            '{model="a", direction="up", term="queue"}': 1,
            '{model="a", direction="down", term="queue"}': 1,
        },
        ("autoscaling", "What set the target", "{{term}}"): {'{term="queue"}': 1},
    },
)
MARKED_BEFORE = Case("and not again", DECISIONS.series, 11 * SCRAPE_S, {
    ("autoscaling", "annotation Decisions", ""): NOBODY,
})  # fmt: skip
FLEET = Case(
    "capacity is that of the ready replicas, however many say so",
    {
        f"llm_autoscaling_ready_replicas{{{POLICY}}}": "3x20",
        f"llm_autoscaling_replica_capacity_rps{{{POLICY}}}": "2.5x20",
        f"llm_autoscaling_ready_replicas{{{POLICY_OF_B}}}": "1x20",
        f"llm_autoscaling_replica_capacity_rps{{{POLICY_OF_B}}}": "4x20",
        f"llm_held_requests{{{A}}}": "2x20",
        f"llm_held_requests{{{B}}}": "5x20",
        f"llm_oldest_held_seconds{{{A}}}": "12x20",
        f"llm_oldest_held_seconds{{{B}}}": "9x20",
    },
    20 * SCRAPE_S,
    {
        ("autoscaling", "Capacity and arrivals", "ready replicas"): {"{}": 3 * 2.5 + 4},
        ("autoscaling", "Held requests", "held"): {"{}": 7},
        ("autoscaling", "Held requests", "oldest"): {"{}": 12},
    },
)
ENGINES = Case(
    "means of a step are by steps, not by replicas",
    {
        # 300 steps of 10 sequences and 20 ms, 100 of 30 and 40 ms.
        f"llm_steps_total{{{A}}}": "0+300x40",
        f"llm_step_sequences_total{{{A}}}": "0+3000x40",
        f"llm_step_seconds_total{{{A}}}": "0+6x40",
        f"llm_steps_total{{{B}}}": "0+100x40",
        f"llm_step_sequences_total{{{B}}}": "0+3000x40",
        f"llm_step_seconds_total{{{B}}}": "0+4x40",
        f"llm_running_requests{{{A}}}": "10x40",
        f"llm_running_requests{{{B}}}": "30x40",
        f"llm_max_num_seqs{{{A}}}": "64x40",
        f"llm_max_num_seqs{{{B}}}": "64x40",
        f"llm_kv_cache_usage_ratio{{{A}}}": "0.2x40",
        f"llm_kv_cache_usage_ratio{{{B}}}": "0.7x40",
        f"llm_prefix_cache_queries_total{{{A}}}": "0+100x40",
        f"llm_prefix_cache_hits_total{{{A}}}": "0+25x40",
        f"llm_prefix_cache_expected_total{{{A}}}": "0+30x40",
        'ray_node_gpus_utilization{namespace="n", pod="p1", GpuIndex="0"}': "40x40",
        'ray_node_gpus_utilization{namespace="n", pod="p2", GpuIndex="0"}': "80x40",
    },
    600,
    {
        stat("engine", "Mean batch"): {"{}": 15},
        stat("engine", "Mean step"): {"{}": 0.025},
        stat("engine", "Running"): {"{}": 40},
        stat("engine", "Fullest KV cache"): {"{}": 0.7},
        stat("engine", "Prefix hits"): {"{}": 0.25},
        stat("engine", "GPU use"): {"{}": 0.6},
        ("engine", "Busy", "{{model}}"): {'{model="a"}': 10 / 15 / 2},
        ("engine", "Prefix cache hits", "{{model}}, found"): {'{model="a"}': 0.25},
        ("engine", "Prefix cache hits", "{{model}}, expected"): {'{model="a"}': 0.3},
    },
)
# Model a has three ready replicas of two GPUs all day. A replica of model b, of one GPU, drains for an hour.
COST = Case(
    "a day's GPU-hours, money, and money for tokens",
    {
        f'llm_autoscaling_replica_seconds_total{{{POLICY}, state="ready"}}': f"0+45x{2 * DAY}",
        f"llm_autoscaling_gpus_per_replica{{{POLICY}}}": f"2x{2 * DAY}",
        f'llm_autoscaling_replica_seconds_total{{{POLICY_OF_B}, state="draining"}}': (
            f"0x{HOUR} 0+{SCRAPE_S}x{HOUR} 3600x{DAY}"
        ),
        f"llm_autoscaling_gpus_per_replica{{{POLICY_OF_B}}}": f"1x{2 * DAY}",
        f"llm_completion_tokens_total{{{A}}}": f"0+1000x{2 * DAY}",
        f"llm_prompt_tokens_total{{{A}}}": f"0+3000x{2 * DAY}",
    },
    24 * 3600 + 1800,
    {
        stat("cost", "GPUs held"): {"{}": 6},
        stat("cost", "Money per hour"): {"{}": 12},
        stat("cost", "GPU-hours, last day"): {"{}": 3 * 2 * 24 + 1},
        stat("cost", "GPU-hours, last 30 days"): {"{}": 3 * 2 * 24.5 + 1},
        stat("cost", "Money, last day"): {"{}": 290},
        stat("cost", "Money"): {"{}": 290},
        stat("cost", "Per million generated"): {"{}": 290 / (1000 * DAY / 1e6)},
        stat("cost", "Per million tokens"): {"{}": 290 / (4000 * DAY / 1e6)},
        ("cost", "GPU-hours by state", "{{state}}"): {'{state="ready"}': 144, '{state="draining"}': 1},
        ("cost", "GPU-hours by model", "{{model}}"): {'{model="a"}': 144, '{model="b"}': 1},
        ("cost", "GPUs by what they do", "{{state}}"): {'{state="ready"}': 6, '{state="draining"}': 0},
        ("cost", "Money per hour by model", "{{model}}"): {'{model="a"}': 12, '{model="b"}': 0},
        ("cost", "Money per million generated tokens", "{{model}}"): {'{model="a"}': 12 / 0.24},
    },
    Values(range_s=86_400),
)
# Of a series that ends, Prometheus supposes that it went on for half a scrape: here 22.5 s of replicas.
MOVED = Case(
    "a head that moves to another pod counts nothing twice",
    {
        f'llm_autoscaling_replica_seconds_total{{{POLICY}, state="ready"}}': f"0+45x{HOUR} stale",
        f"llm_autoscaling_gpus_per_replica{{{POLICY}}}": f"2x{HOUR + 9} stale",
        f'llm_autoscaling_replica_seconds_total{{{POLICY_AFTER}, state="ready"}}': f"_x{HOUR} 0+45x{HOUR}",
        f"llm_autoscaling_gpus_per_replica{{{POLICY_AFTER}}}": f"_x{HOUR} 2x{HOUR}",
    },
    2 * 3600,
    {
        stat("cost", "GPU-hours, last day"): {"{}": 3 * 2 * 2 + 2 * 22.5 / 3600},
        ("cost", "GPU-hours by state", "{{state}}"): {'{state="ready"}': 3 * 2 * 2 + 2 * 22.5 / 3600},
    },
    Values(range_s=86_400),
)
IDLE = Case(
    "a replica is idle that neither runs nor queues anything",
    {
        f"llm_{what}_requests{{{replica}}}": f"{count}x{2 * HOUR}"
        for replica, counts in ((A, (5, 0)), (B, (0, 2)), (C, (0, 0)))
        for what, count in zip(("running", "waiting"), counts, strict=True)
    },
    7000,
    {
        stat("cost", "Idle"): {"{}": 1 / 3},
        ("cost", "Idle share", "{{model}}"): {'{model="a"}': 1 / 3},
        stat("service", "In engines"): {"{}": 7},
    },
)
# One key uses half a GPU all the time. Another has used a GPU for an hour at once, in the last hour.
USAGE = Case(
    "what API keys used, and what nobody used",
    {
        f'llm_usage_gpu_seconds_total{{{A}, key="alice", lane="interactive"}}': f"0+7.5x{2 * HOUR}",
        f'llm_usage_gpu_seconds_total{{{B}, key="bob", lane="background"}}': f"_x{HOUR + 20} 3600x{HOUR}",
        f'llm_usage_cost_total{{{A}, key="alice", lane="interactive", state="used"}}': f"0+0.5x{2 * HOUR}",
        f'llm_usage_cost_total{{{A}, key="", lane="", state="idle"}}': f"0+0.25x{2 * HOUR}",
        f'llm_usage_tokens_total{{{A}, key="alice", lane="interactive", kind="prompt"}}': f"0+300x{2 * HOUR}",
        f'llm_usage_tokens_total{{{A}, key="alice", lane="interactive", kind="cached"}}': f"0+200x{2 * HOUR}",
        f'llm_usage_tokens_total{{{A}, key="alice", lane="interactive", kind="completion"}}': (
            f"0+100x{2 * HOUR}"
        ),
        f'llm_usage_unused_gpu_seconds_total{{{A}, state="idle"}}': f"0+3.75x{2 * HOUR}",
    },
    3600 + 1800,
    {
        ("cost", "GPU-hours by API key", "{{key}}"): {'{key="alice"}': 0.5, '{key="bob"}': 1},
        ("cost", "Money by API key", "{{key}}"): {'{key="alice"}': 0.5 * HOUR},
        ("cost", "Money without use", "{{state}}"): {'{state="idle"}': 0.25 * HOUR},
        ("cost", "Tokens by API key", "{{key}}"): {'{key="alice"}': 400 * HOUR},
        ("cost", "GPUs by lane", "{{lane}}"): {'{lane="interactive"}': 0.5, '{lane="background"}': 0},
        ("cost", "GPUs without use", "{{state}}"): {'{state="idle"}': 0.25},
    },
)
LOST = Case(
    "a lost replica, and what it cost the requests that it delayed",
    {
        f'llm_autoscaling_losses_total{{{POLICY}, cause="engine_hung"}}': "0x38 1x2",
        f'llm_autoscaling_losses_total{{{POLICY}, cause="node_lost"}}': "0x40",
        **histogram("llm_lost_wait_seconds", A, {"30": "0x40", "60": "0x38 4x2", "+Inf": "0x38 4x2"}),
    },
    600,
    {
        ("autoscaling", "Lost replicas", "{{cause}}"): {'{cause="engine_hung"}': 1, '{cause="node_lost"}': 0},
        ("autoscaling", "Time lost with replicas", "P50"): {"{}": 45},
        ("autoscaling", "Time lost with replicas", "P95"): {"{}": 30 + 30 * 0.95},
    },
)
HANDOVERS = Case(
    "a model gave places to others, to one of them for the first time",
    {
        f'llm_autoscaling_handovers_total{{{POLICY}, taker="b"}}': "3x38 4x2",
        f'llm_autoscaling_handovers_total{{{POLICY}, taker="c"}}': "_x38 2x2",
        f'llm_autoscaling_handovers_total{{{POLICY}, taker="d"}}': "1x40",
    },
    600,
    {
        ("autoscaling", "Places given to other models", "to {{taker}}"): {
            '{taker="b"}': 1,
            '{taker="c"}': 2,
            '{taker="d"}': 0,
        }
    },
)
CASES = (
    FIRST_REQUESTS, QUANTILES, NO_TRAFFIC, OUTCOMES, INTERRUPTED, DECISIONS, MARKED_BEFORE, FLEET, ENGINES,
    COST, MOVED, IDLE, USAGE, LOST, HANDOVERS,
)  # fmt: skip
