"""From a model, GPUs and users to the settings of its replicas. Pure."""

from dataclasses import dataclass, replace
from itertools import product

from serve_app.settings.fit.architecture import Architecture
from serve_app.settings.fit.memory import (
    CPU_BLOCK,
    GIB,
    GPUS_PER_NODE,
    GpuKind,
    Sharding,
    gib,
    kv_bytes,
    longest_that_fits,
    reserved_bytes,
    weight_bytes,
)

SHARE = 0.9
"""`gpu_memory_utilization`: the share of a GPU's memory that vLLM may take."""
MEAN_SHARE = 4
"""A sequence is assumed to hold a quarter of the context on average."""
USUAL_CONTEXT, LEAST_CONTEXT = 32_768, 8_192
_LEAST_SEQUENCES, _MOST_SEQUENCES, _MOST_CPU_SEQUENCES, _MOST_REPLICAS = 8, 256, 64, 10_000
_CPU_SHARE, _CPU_ENGINE = 0.7, 2 * GIB
"""The share of a machine's memory for engines, and the memory of one engine's libraries and processes."""
BANDWIDTH_SHARE, LAUNCH_S, _PEAK_SHARE, _SEQUENCE_S = 0.85, 1e-3, 0.5, 4e-5
"""The rule of docs/capacity.md's profiles."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of a model's replicas, and the bytes on one GPU that they follow from."""

    over: Sharding
    context: int
    weights: int
    reserved: int
    cache: int
    sequence: int  # bytes of the KV cache of one sequence of a mean length
    replicas: int = 1

    @property
    def mean(self) -> int:
        """Tokens of a sequence of a mean length."""
        return max(self.context // MEAN_SHARE, 1)


class DoesNotFitError(ValueError):
    """No setting fits, with the numbers."""


def choose(
    model: Architecture, weights: int, gpu: GpuKind, gpus: int | None, context: int | None, users: int
) -> Plan:
    """Return the plan with the fewest GPUs in a replica, within a node where possible.

    Args:
        weights: Bytes of the checkpoint.
        gpus: All GPUs for the model; None for as many as the users need.
        context: Tokens that must fit; None for up to 32,768, at least 8,192.

    Raises:
        DoesNotFitError: `gpus` GPUs do not hold the model and one sequence.
    """
    is_sparse = len([layer for layer in model.layers if layer.elements and not layer.heads]) > 1
    if is_sparse and gpu.ray_name in ("A100", "A100-40G", "L40S", "L4", "A10G", None):
        raise DoesNotFitError("vLLM has sparse MLA for H100, H200 and B200 alone")
    most, batch = gpus or 8 * GPUS_PER_NODE, 8192 if gpu.memory_gib > 70 else 2048
    batch = batch if model.layers else max(batch, model.longest or 0)
    within = [size for size in (1, 2, 4, 8) if size <= most and model.splits_over(size)]
    deepest = min(most // within[-1], model.depth)
    shared = [(size, 1) for size in within] + [(within[-1], stages) for stages in range(2, deepest + 1)]
    wanted = min(max(users, _LEAST_SEQUENCES), _MOST_SEQUENCES)
    for sequences, (tensor, stages) in product((wanted >> halved for halved in range(6)), shared):
        over = Sharding(tensor, stages, batch, sequences := max(sequences, _LEAST_SEQUENCES))
        plan, is_enough = _fitted(model, weights, SHARE * gpu.memory_gib * GIB, over, context)
        if is_enough:
            plan = _for_users(plan, users, sequences)
            fitting = plan.replicas if gpus is None else min(plan.replicas, gpus // over.gpus)
            return replace(plan, replicas=fitting)
    raise _refusal(model, plan, f"on each of {plan.over.gpus} GPUs", context)


def choose_cpu(
    model: Architecture, weights: int, memory: int, context: int | None, users: int, replicas: int
) -> Plan:
    """Return the plan for `replicas` engines that share a machine's CPUs and `memory` (bytes)."""
    over, budget = Sharding(batch_tokens=2048, block=CPU_BLOCK), _CPU_SHARE * memory / replicas
    plan, is_enough = _fitted(model, weights, budget, over, context, _CPU_ENGINE)
    if not is_enough:
        raise _refusal(model, plan, f"for each of {replicas} engines on the CPU", context)
    plan = _for_users(plan, users, _MOST_CPU_SEQUENCES)
    wanted = max(kv_bytes(model, plan.context, over), plan.over.sequences * plan.sequence, 1)
    return replace(plan, replicas=replicas, cache=min(-(-wanted // (1 << 20)) << 20, plan.cache))


def _fitted(
    model: Architecture, weights: int, budget: float, over: Sharding, context: int | None, fixed: int = 0
) -> tuple[Plan, bool]:
    """Return the plan with the longest context that fits, and whether it is long enough."""
    longest = model.longest or context or USUAL_CONTEXT
    wanted = min(context or USUAL_CONTEXT, longest)
    held, reserved = weight_bytes(model, weights, over), fixed or reserved_bytes(model, over)
    cache = int(budget) - held - reserved
    part = cache if context else cache // 2  # two sequences of full length, so eight of a mean length
    fits = longest_that_fits(model, part, wanted, over) if cache > 0 else 0
    sequence = kv_bytes(model, max(fits // MEAN_SHARE, 1), over)
    least = wanted if context else min(LEAST_CONTEXT, longest)
    return Plan(over, fits, held, reserved, cache, sequence), fits >= least


def _for_users(plan: Plan, users: int, most: int) -> Plan:
    """Return `plan` with as many sequences and replicas as the users need and the caches hold."""
    held = plan.cache // plan.sequence if plan.sequence else most
    each = max(min(held, most, max(users, _LEAST_SEQUENCES)), 1)
    over = replace(plan.over, sequences=each)
    return replace(plan, over=over, replicas=min(-(-users // each), _MOST_REPLICAS))


def _refusal(model: Architecture, plan: Plan, where: str, context: int | None) -> DoesNotFitError:
    text = (
        f"{gib(plan.weights)} of weights and {gib(plan.reserved)} of activations and libraries {where}, of "
        f"which vLLM may take {gib(plan.weights + plan.reserved + plan.cache)}"
    )
    wanted = min(context or LEAST_CONTEXT, model.longest or context or LEAST_CONTEXT)
    if (fits := longest_that_fits(model, plan.cache, wanted, plan.over)) >= 256:
        needed = f"{wanted:,}" if context else f"{wanted:,} twice"
        text += f", leave {fits:,} tokens of context and not {needed}; --context {fits} fits"
    return DoesNotFitError(text)


def step_seconds(model: Architecture, plan: Plan, gpu: GpuKind) -> dict[str, float]:
    """Return the knob `starting_values`. The step times are derived, not measured.

    A step reads the weights at 85 % of the bandwidth, and a millisecond goes to launches. Prefill computes at
    half of the peak. Of a mixture of experts, a step of 32 sequences reads the experts that one of them
    selects, and a prefill token computes with those that it selects.
    """
    experts = 3.0 * model.hidden * model.expert_width * model.experts * model.expert_layers
    plain = model.intermediate * (model.depth - model.expert_layers if model.experts else model.depth)
    ends = model.vocabulary * model.hidden * (1 if model.is_tied else 2)
    keys = sum(each.count * each.elements * max(each.heads, 1) for each in model.layers)
    dense = (2 * model.depth * model.hidden + keys) * model.hidden + 3 * model.hidden * plain + ends
    part, share = model.experts_per_token / max(model.experts, 1), experts / (experts + dense)
    read = 1 - share * (1 - part) ** 32
    over, speed = plan.over, BANDWIDTH_SHARE * gpu.bandwidth
    found = {
        "step_base_s": over.pipeline_parallel * (read * plan.weights / speed + LAUNCH_S),
        "step_per_sequence_s": _SEQUENCE_S,
        "step_per_kv_token_s": kv_bytes(model, 4096, over) / 4096 / speed,
        "step_per_prefill_token_s": 2 * (dense + part * experts) / over.gpus / (_PEAK_SHARE * gpu.flops),
    }
    return {name: float(f"{value:.3g}") for name, value in found.items()}
