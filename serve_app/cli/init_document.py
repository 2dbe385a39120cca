"""The configuration that `tideserve init` writes. Each value has a comment that says what it follows from."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import yaml

from serve_app.cli.application_checks import IMPORT_PATH, POLICY_FUNCTION
from serve_app.settings.fit.architecture import Architecture
from serve_app.settings.fit.families import parsers_of
from serve_app.settings.fit.memory import GPUS_PER_NODE, GpuKind, gib, kv_bytes
from serve_app.settings.fit.plan import BANDWIDTH_SHARE, LAUNCH_S, SHARE, Plan, step_seconds
from serve_app.settings.tree import EMBEDDED
from serve_app.weights.model_files import ModelFiles

_TARGETS_S = (0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
_STRUCTURE = dict(
    line.split(": ", 1)
    for line in """
proxy_location: a proxy on each node with replicas
http_options: where the server listens
host: this machine only; 0.0.0.0 opens it, see docs/security.md
port: Ray Serve's default
applications: one application
applications.name: its name in logs and metrics
route_prefix: the API begins at the root
import_path: Tideserve's application
autoscaling_policy: decides the replicas of every deployment
policy_function: Tideserve's policy
args: settings; a changed one restarts the replicas that use it
ledger: usage in tokens, GPU-seconds and money, see docs/ledger.md
gpu_hour_prices: USD for one device and hour, by accelerator_type
models: one model
models.name: clients send it in `model`
deployments: knobs; a changed one restarts nothing
deployments.name: this deployment has the knobs of all
user_config: docs/operating.md explains each knob
ingress: the replicas that speak HTTP
autoscaling: the policy of each model
min_replicas: one stays warm; with 0 the model goes when it is idle
step_per_sequence_s: scheduling and sampling, by the rule
adapters: LoRA adapters by the names that clients send in `model`
max_rank: the least of vLLM's ranks that holds it
image: your image, see docs/kubernetes-images.md
repository: a placeholder
app: settings of all models
drain_timeout_s: the longest generation; the default
gpuProfile: the chart's kind of nodes for accelerator_type
gpuProfiles: kinds of nodes that the chart does not have
ingressWorkers: pods of the ingress
""".strip().split("\n")
)


class Given(NamedTuple):
    """What the configuration is written from."""

    files: ModelFiles
    model: Architecture
    plan: Plan
    gpu: GpuKind | None  # None: the CPU
    hardware: str
    cpus: float  # of one replica
    users: int


def serve_document(given: Given) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the Serve configuration, and comments by the end of a key's path."""
    name, kind = _name(given.files.model), "cpu" if given.gpu is None else given.gpu.ray_name or "any"
    model, knobs = _model(given), _knobs(given)
    settings = {"name": name, **{key: value for key, (value, _) in model.items()}}
    autoscaling = {key: value for key, (value, _) in knobs.items()}
    count = 1 if given.gpu is None else 2
    user_config = {
        "ingress": {"min_replicas": count, "max_replicas": count},
        "autoscaling": {name: autoscaling},
    }
    application = {
        "name": "tideserve",
        "route_prefix": "/",
        "import_path": IMPORT_PATH,
        "autoscaling_policy": {"policy_function": POLICY_FUNCTION},
        "args": {"ledger": {"gpu_hour_prices": {kind: 0}}, "models": [settings]},
        "deployments": [{"name": "Ingress", "user_config": user_config}],
    }
    listening = {"host": "127.0.0.1", "port": 8000}
    document = {"proxy_location": "EveryNode", "http_options": listening, "applications": [application]}
    shares = f"{given.plan.replicas} x {given.plan.over.sequences} sequences for {given.users} users"
    several = "the loss of one leaves another" if count > 1 else "another would take CPUs from the engine"
    comments = {
        f"gpu_hour_prices.{kind}": "a placeholder: set your price; `tideserve check` reminds of it",
        **{f"ingress.{bound}_replicas": several for bound in ("min", "max")},
        f"autoscaling.{name}": shares,
        **{f"adapters.{adapter}": "the adapter's files" for adapter in autoscaling.get("adapters", {})},
        **{key: comment for key, (_, comment) in {**model, **knobs}.items()},
        **_comments_of_steps(given),
    }
    return document, _STRUCTURE | comments


def _name(source: str) -> str:
    name = re.sub(r"[^a-z0-9._-]+", "-", source.rstrip("/").rpartition("/")[2].lower()).strip("-._")
    return {EMBEDDED: "tideserve-tiny", "ingress": "model", "": "model"}.get(name, name)


def _model(given: Given) -> dict[str, tuple[Any, str]]:
    """Return the settings of the model, each with its comment."""
    files, model, plan, gpu, hardware, cpus, users = given
    over, held, one = plan.over, gib(plan.weights), gib(kv_bytes(model, plan.context, plan.over))
    kept = f"{files.weights / 1e9:.3g} GB of weights, {model.quantization or model.dtype}, {model.name}"
    mean = f"{plan.mean:,} tokens on average (a quarter of the context), {gib(plan.sequence)} each"
    found: dict[str, tuple[Any, str]] = {}

    def put(key: str, value: Any, comment: str) -> None:
        found[key] = (value, comment)

    put("model", files.model, f"{kept}; licence: {files.licence or 'not stated'}")
    put("device", "cpu" if gpu is None else "gpu", hardware)
    if gpu is None:
        put("cpus_per_replica", cpus, "CPUs for the engine; the ingress takes 0.5")
        put("dtype", "bfloat16", f"{model.dtype} in config.json; half the memory of float32")
        sequences = f"one full sequence, or {over.sequences} of {mean}"
        put("kv_cache_memory_bytes", plan.cache, f"{gib(plan.cache)}: {sequences}")
        eager = "starts at once; without it, compiling takes a minute, and steps are faster"
        put("enforce_eager", True, eager)
    else:
        named = "Ray's name of the GPU" if gpu.ray_name else "any, because Ray has no name for it"
        put("accelerator_type", gpu.ray_name, named)
        share = f"{held} of {gib(files.weights)} on each GPU; divides {model.attention_heads} heads"
        put("tensor_parallel_size", over.tensor_parallel, share)
        if over.pipeline_parallel > 1:
            stages = f"{model.depth} layers in stages of {over.tensor_parallel} GPUs"
            put("pipeline_parallel_size", over.pipeline_parallel, stages)
        if over.gpus > GPUS_PER_NODE:
            more = f"{over.gpus} GPUs are more than the {GPUS_PER_NODE} of a node"
            put("placement_group_strategy", "PACK", more)
        parts = f"{SHARE:g} x {gpu.memory_gib:g} GiB - {held} - {gib(plan.reserved)}"
        cache = f"{parts} of activations and graphs (estimated) = {gib(plan.cache)} of KV cache"
        put("gpu_memory_utilization", SHARE, cache)
        if not model.is_multimodal:  # vLLM's own default covers the largest image
            step = f"tokens of one step, for a GPU of {gpu.memory_gib:g} GiB"
            put("max_num_batched_tokens", over.batch_tokens, step)
    if model.longest or model.layers:
        limit = f"the model's own is {model.longest:,}; " if model.longest else ""
        put("max_model_len", plan.context, f"{limit}one sequence of this length takes {one} of KV cache")
    put("max_num_seqs", over.sequences, f"{users} users; sequences of {mean}")
    tools, reasoning, why = parsers_of(model.types, files.chat_template)
    if "Whisper" in model.name:
        put("task", "transcribe", f"{model.name} transcribes speech")
    elif "SequenceClassification" in model.name:
        put("task", "classify", f"{model.name} classifies")
    elif files.is_embedding or not model.layers:
        put("task", "embed", "modules.json is there" if files.is_embedding else f"{model.name} is an encoder")
    else:
        put("tool_call_parser", tools, why)
        put("reasoning_parser", reasoning, why)
    if files.own_code:
        code = f"read {', '.join(files.own_code)} first, and set it to true if vLLM asks for it"
        put("trust_remote_code", False, code)
    if files.adapter is not None:
        rank = next(each for each in _RANKS if each >= min(files.adapter[1], _RANKS[-1]))
        put("lora", {"max_rank": rank}, f"the adapter's rank is {files.adapter[1]}")
    return found


def _knobs(given: Given) -> dict[str, tuple[Any, str]]:
    files, model, plan, gpu, _, _, users = given
    gpus = f" on {plan.over.gpus} GPU(s)" if gpu is not None else ""
    held = plan.replicas * plan.over.sequences
    short = f"; {users - held} of {users} users queue" if held < users else ""
    found: dict[str, tuple[Any, str]] = {
        "min_replicas": (1, _STRUCTURE["min_replicas"]),
        "max_replicas": (plan.replicas, f"each holds {plan.over.sequences} sequences{gpus}{short}"),
    }
    if gpu is None or not gpu.bandwidth:
        unknown = "no profile is known; `tideserve capacity` measures one, see docs/capacity.md"
        found |= {"ttft_target_s": (2.0, unknown), "itl_target_s": (0.2, unknown)}
    else:
        steps, each = step_seconds(model, plan, gpu), plan.mean if model.layers else 0
        per_sequence_s = steps["step_per_sequence_s"] + each * steps["step_per_kv_token_s"]
        decode_s = steps["step_base_s"] + plan.over.sequences * per_sequence_s
        prefill_s = plan.mean * steps["step_per_prefill_token_s"] + decode_s
        found["ttft_target_s"] = _target(prefill_s, 0.2, f"a prompt of {plan.mean:,} tokens takes")
        found["itl_target_s"] = _target(decode_s, 0.025, f"a step of {plan.over.sequences} sequences takes")
        tokens = plan.cache // plan.sequence * plan.mean if plan.sequence else 0
        values = steps | ({"kv_cache_tokens": min(tokens, 10**9)} if tokens >= 1024 else {})
        rule = "by the rule of docs/capacity.md, not measured; the policy learns them"
        found["starting_values"] = (values, rule)
    if files.adapter is not None:
        base, name = _name(files.model), _name(files.adapter[0])
        name = f"{base}-adapter" if name == base else name
        found["adapters"] = ({name: files.adapter[0]}, _STRUCTURE["adapters"])
    return found


def _target(takes_s: float, usual_s: float, what: str) -> tuple[float, str]:
    """Return the first target of which at most four fifths are used, and what it follows from."""
    least, most = max(1.25 * takes_s, usual_s), float(min(-(-1.25 * takes_s // 1), 3600))
    target = next((each for each in _TARGETS_S if each >= least), most)
    missed = "" if target <= usual_s else f"; the usual {1000 * usual_s:g} ms cannot be met"
    return target, f"{what} {1000 * takes_s:.0f} ms by the rule{missed}"


def _comments_of_steps(given: Given) -> dict[str, str]:
    _, model, plan, gpu, *_ = given
    if gpu is None or not gpu.bandwidth:
        return {}
    stages = plan.over.pipeline_parallel
    base_s = step_seconds(model, plan, gpu)["step_base_s"] / stages
    read = (base_s - LAUNCH_S) * BANDWIDTH_SHARE * gpu.bandwidth
    parts = (
        f"{gib(read)} of {gib(plan.weights)} (32 sequences leave experts out)" if model.experts else gib(read)
    )
    base = f"{parts} at 85 % of {gpu.bandwidth / 1e12:.2f} TB/s, and 1 ms"
    return {
        "step_base_s": base if stages == 1 else f"{base}; {stages} stages",
        "step_per_kv_token_s": f"{gib(kv_bytes(model, 4096, plan.over) / 4096)} at the same speed",
        "step_per_prefill_token_s": f"half of {gpu.flops / 1e12:.0f} TFLOPS on {plan.over.gpus} GPU(s)",
        "kv_cache_tokens": f"{gib(plan.cache)} in sequences of {plan.mean:,} tokens",
    }


def commented_yaml(tree: Mapping[str, Any], comments: Mapping[str, str]) -> str:
    """Return `tree` as YAML, with the comment of the longest end of each line's dotted path."""
    return "".join(f"{line}\n" for line in _lines(tree, comments, (), 0))


def _lines(
    tree: Mapping[str, Any], comments: Mapping[str, str], path: tuple[str, ...], indent: int
) -> Iterator[str]:
    for key, value in tree.items():
        here, pad = (*path, key), " " * indent
        ends = (".".join(here[at:]) for at in range(len(here)))
        comment = next((comments[end] for end in ends if end in comments), "as in the configuration")
        comment = " ".join(comment.split())  # a model's files may have line breaks
        is_list = isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)
        is_nested = is_list or (isinstance(value, Mapping) and bool(value))
        yield f"{pad}{_scalar(key)}:{'' if is_nested else ' ' + _scalar(value)} # {comment}"
        for item in value if is_list else ():
            lines = list(_lines(item, comments, here, indent + 4))
            yield from [f"{pad}  - {lines[0].strip()}", *lines[1:]]
        if is_nested and not is_list:
            yield from _lines(value, comments, here, indent + 2)


def _scalar(value: Any) -> str:
    return str(yaml.safe_dump(value, default_flow_style=True, width=10**6)).split("\n...")[0].strip()
