"""What a model's `config.json` says about its memory.

vLLM reads the same keys in `transformers_utils/model_arch_config_convertor.py` and in `models/*.py`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

_FULL = ("full_attention", "attention", "deepseek_sparse_attention", "*")
_KINDS = {
    **dict.fromkeys(_FULL, "full"),
    **dict.fromkeys(("sliding_attention", "sliding_window", "chunked_attention"), "window"),
    **dict.fromkeys(("linear_attention", "mamba", "conv", "M"), "state"),
    **dict.fromkeys(("mlp", "moe", "-", "E"), ""),
}
"""The cache of a layer by its word in `layer_types` and the like."""
_MLA = (
    "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "glm4_moe_lite", "kimi_k2", "kimi_linear",
    "longcat_flash", "pangu_ultra_moe", "axk1",
)  # fmt: skip
_UNKNOWN_CACHE = "compress_ratios block_configs rswa_window cross_attention_layers indexer_n_heads"
"""Keys of models whose cache this module does not compute, such as DeepSeek V4's compressed one."""
_LENGTHS = (
    "max_position_embeddings n_positions max_seq_len seq_length max_target_positions max_sequence_length "
    "max_seq_length seq_len"
)
_ENCODERS = ("bert", "roberta", "xlm-roberta", "modernbert", "nomic_bert", "distilbert")


class UnknownArchitectureError(ValueError):
    """A `config.json` whose memory cannot be computed, with the key and its value."""


@dataclass(frozen=True, slots=True)
class State:
    """The state of one sequence in a layer with Mamba or linear attention (`mamba_utils.py`), in elements."""

    width: int  # of the convolution, and twice `group_width` for each group
    kernel: int
    recurrent: int
    recurrent_bytes: int = 2  # of an element
    groups: int = 0
    group_width: int = 0
    kept: int = 2  # states of a sequence with prefix caching; a checkpoint of a prefill is the third


@dataclass(frozen=True, slots=True)
class Layers:
    """Layers with equal caches. `elements` are the keys and values of one token and KV head."""

    count: int
    elements: int = 0
    heads: int = 0  # 0: each GPU of a replica holds all (MLA)
    window: int | None = None
    fixed: int = 0  # tokens that each sequence keeps, whatever its length: an encoder's output
    element_bytes: int | None = None  # None: as the setting of the KV cache says
    state: State | None = None


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model as far as its memory depends on it. Widths are in elements, `longest` in tokens."""

    name: str
    types: tuple[str, ...]  # `model_type` of the model and of its language model
    layers: tuple[Layers, ...]  # empty for an encoder, which has no KV cache
    depth: int
    hidden: int
    intermediate: int
    vocabulary: int
    attention_heads: int
    experts: int
    experts_per_token: int
    expert_width: int
    expert_layers: int
    longest: int | None
    is_multimodal: bool
    is_tied: bool  # the output layer has the weights of the embedding
    quantization: str | None
    group: int  # consecutive weights with one scale, which stay on one GPU
    dtype: str

    @property
    def is_mla(self) -> bool:
        return any(layer.elements and not layer.heads for layer in self.layers)

    def shares_heads(self, size: int) -> bool:
        """Whether `size` GPUs have whole heads. KV heads may be copied to equal numbers of GPUs."""
        kv_heads = (layer.heads for layer in self.layers if layer.heads)
        fit = all(each % size == 0 or size % each == 0 for each in kv_heads)
        return fit and self.attention_heads % size == 0

    def splits_over(self, size: int) -> bool:
        """Whether vLLM can share each layer among `size` GPUs: heads and groups of weights stay whole."""
        widths = [self.intermediate] if self.expert_layers < self.depth or not self.experts else []
        if self.experts and self.quantization == "compressed-tensors":  # others pad, or split a group
            widths.append(self.expert_width)
        fit = size == 1 or all(width % (size * self.group) == 0 for width in widths)
        return fit and self.shares_heads(size)


def read_architecture(config: Mapping[str, Any]) -> Architecture:
    """Return the architecture. Raises UnknownArchitectureError for a missing key or an unknown value."""
    try:
        return _read(config)
    except (AttributeError, KeyError, TypeError, ZeroDivisionError) as error:
        raise UnknownArchitectureError(f"has an unknown form: {type(error).__name__}: {error}") from None


def _read(config: Mapping[str, Any]) -> Architecture:
    names = config.get("architectures")
    if not isinstance(names, list) or not names:
        raise UnknownArchitectureError(f"architectures = {names!r}: must name the model's class")
    outer = next((each for each in [config.get("thinker_config")] if isinstance(each, Mapping)), config)
    inner = (outer.get(key) for key in ("text_config", "llm_config", "language_config"))
    known = {**config, **next((each for each in inner if isinstance(each, Mapping)), outer)}
    for key in _UNKNOWN_CACHE.split():
        if known.get(key):
            raise UnknownArchitectureError(
                f"{key} = {str(known[key])[:60]}: the size of this cache is not known"
            )
    words = known.get("hybrid_override_pattern") or known.get("layers_block_type") or ()
    hidden = _number(known, "hidden_size d_model n_embd")
    depth = _number(known, "num_hidden_layers num_layers n_layer decoder_layers n_layers", len(words) or None)
    heads = _number(known, "num_attention_heads n_head n_heads decoder_attention_heads", 0)
    dense = _number(known, "first_k_dense_replace", 0)
    quantized = config.get("quantization_config") or known.get("quantization_config") or {}
    lengths = "model_max_length" if known.get("model_max_length") else _LENGTHS
    layers = () if known.get("model_type") in _ENCODERS else tuple(_layers(known, depth, heads, hidden))
    if quantized.get("kv_cache_scheme") or quantized.get("kv_cache_quant_algo"):  # vLLM's `auto` follows it
        layers = tuple(replace(each, element_bytes=1) for each in layers)
    return Architecture(
        name=str(names[0]),
        types=(str(config.get("model_type")), str(known.get("model_type"))),
        layers=layers,
        depth=depth,
        hidden=hidden,
        intermediate=_number(known, "intermediate_size n_inner decoder_ffn_dim", 4 * hidden),
        vocabulary=_number(known, "vocab_size", 0),
        attention_heads=heads,
        experts=_number(known, "num_experts n_routed_experts num_local_experts", 0),
        experts_per_token=_number(known, "num_experts_per_tok top_k_experts moe_topk", 0),
        expert_width=_number(known, "moe_intermediate_size intermediate_size", 0),
        expert_layers=sum(word in ("E", "moe") for word in words) or depth - dense,
        longest=min((known[key] for key in lengths.split() if isinstance(known.get(key), int)), default=None),
        is_multimodal=any(key in outer for key in ("vision_config", "audio_config")),
        is_tied=bool(known.get("tie_word_embeddings")),
        quantization=str(quantized.get("quant_method") or "unknown") if quantized else None,
        group=_group(quantized),
        dtype=str(known.get("dtype") or known.get("torch_dtype")),
    )


def _group(quantized: Mapping[str, Any]) -> int:
    """Return how many consecutive weights of a row share a scale; 1 without such groups."""
    parts = [each.get("weights") or {} for each in (quantized.get("config_groups") or {}).values()]
    sizes = [each.get("group_size") for each in (quantized, *parts)]
    sizes += (quantized.get("weight_block_size") or [])[-1:]
    return max([1, *(size for size in sizes if isinstance(size, int))])


def _number(config: Mapping[str, Any], keys: str, default: int | None = None) -> int:
    for key in keys.split():
        value = config.get(key)
        if isinstance(value, list) and len(set(value)) == 1:
            value = value[0]
        least = int(default is None)
        if value is not None and not (type(value) is int and least <= value < 1 << 40):
            raise UnknownArchitectureError(f"{key} = {str(value)[:60]}: must be an integer, at least {least}")
        if value is not None:
            return int(value)
    if default is None:
        raise UnknownArchitectureError(
            f"{keys.partition(' ')[0]}: not given, and the size of the model follows from it"
        )
    return default


def _layers(config: Mapping[str, Any], depth: int, heads: int, hidden: int) -> Iterator[Layers]:
    words = _words(config, depth)
    if unknown := [word for word in words if word not in _KINDS]:
        raise UnknownArchitectureError(
            f"layer_types has {unknown[0]!r}: the cache of such a layer is not known"
        )
    shared = _number(config, "num_kv_shared_layers", 0)  # they read the cache of another layer
    counts = Counter(_KINDS[word] for word in words[: len(words) - shared])
    counts["full"] += depth if config.get("model_type") == "falcon_h1" else 0  # each layer has both
    full = counts["full"]
    if config.get("model_type") in _MLA and config.get("kv_lora_rank") is not None:
        yield Layers(full, _number(config, "kv_lora_rank") + _number(config, "qk_rope_head_dim", 0))
        if width := _number(config, "index_head_dim", 0):  # DeepSeek V3.2 and GLM-5: a byte each, and scales
            yield Layers(full, width + width // 128 * 4, element_bytes=1)
        full = 0
    size = _number(config, "head_dim attention_head_dim", 0) or (hidden // heads if heads else 0)
    kv_keys = "num_key_value_heads n_head_kv num_kv_heads multi_query_group_num num_attention_groups"
    kv_keys += " kv_n_heads decoder_attention_heads"
    is_single = config.get("multi_query") and not config.get("new_decoder_architecture")  # Falcon's
    kv_heads = 1 if is_single else _number({**(config.get("attn_config") or {}), **config}, kv_keys, heads)
    if counts["window"]:
        key = _number(config, "swa_head_dim", size)
        both = key + _number(config, "swa_v_head_dim v_head_dim", key)
        own = _number(config, "swa_num_key_value_heads", kv_heads)
        length = _number(config, "sliding_window attention_chunk_size")
        yield Layers(counts["window"], both, own, window=length)
    if full:
        key = _number(config, "global_head_dim", size)
        own = _number(config, "num_global_key_value_heads", kv_heads)
        yield Layers(full, key + _number(config, "v_head_dim", key), own)
    if source := _number(config, "max_source_positions", 0):  # Whisper's decoder attends to the encoder
        yield Layers(depth, 2 * size, kv_heads, fixed=source)
    if counts["state"]:
        yield Layers(counts["state"], state=_state(config, hidden))


def _words(config: Mapping[str, Any], depth: int) -> list[str]:
    """Return a word for each layer."""
    kind, window = str(config.get("model_type")), config.get("sliding_window")
    for key in ("layer_types", "layers_block_type", "hybrid_override_pattern"):
        if config.get(key):
            return list(config[key])
    if pattern := config.get("hybrid_layer_pattern"):  # MiMo V2
        return ["sliding_window" if mark else "attention" for mark in pattern]
    if isinstance(linear := config.get("linear_attn_config"), Mapping):  # Kimi Linear
        return ["attention"] * len(linear["full_attn_layers"]) + ["mamba"] * len(linear["kda_layers"])
    if kind in ("mamba", "mamba2", "falcon_mamba", "falcon_h1"):
        return ["mamba"] * depth
    if period := _number(config, "attn_layer_period", 0):  # Jamba
        offset = _number(config, "attn_layer_offset", 0)
        return ["attention" if at % period == offset else "mamba" for at in range(depth)]
    if interval := _number(config, "full_attention_interval", 0):  # Qwen3-Next
        return ["mamba" if (at + 1) % interval else "attention" for at in range(depth)]
    usual = {"gemma2": 2, "gemma3_text": 6, "cohere2": 4, "llama4_text": 4}.get(kind, 0)
    every = _number(config, "sliding_window_pattern", usual)
    if every and (window or config.get("attention_chunk_size")):
        return ["sliding_window" if (at + 1) % every else "attention" for at in range(depth)]
    is_windowed = window and kind in ("mistral", "mixtral", "phi3", "phimoe")
    return ["sliding_window" if is_windowed else "attention"] * depth


def _state(config: Mapping[str, Any], hidden: int) -> State:
    if "linear_num_value_heads" in config:  # the gated delta net of Qwen3-Next and Qwen3.5
        key, heads = _number(config, "linear_key_head_dim"), _number(config, "linear_num_value_heads")
        value = heads * _number(config, "linear_value_head_dim")
        kernel, size = _number(config, "linear_conv_kernel_dim"), config.get("mamba_ssm_dtype") == "float32"
        width = 2 * _number(config, "linear_num_key_heads") * key + value
        return State(width, kernel, value * key, 4 if size else 2)
    if isinstance(linear := config.get("linear_attn_config"), Mapping):  # Kimi Linear
        width = linear["num_heads"] * linear["head_dim"]
        kernel = linear.get("short_conv_kernel_size", 4)
        return State(3 * width, kernel, width * linear["head_dim"], 4, kept=3)
    if "conv_L_cache" in config:  # LFM2
        return State(_number(config, "conv_dim", hidden), _number(config, "conv_L_cache"), 0)
    kind, kernel = config.get("model_type"), _number(config, "conv_kernel mamba_d_conv", 4)
    state = _number(config, "ssm_state_size mamba_d_state state_size", 16)
    heads = _number(config, "mamba_num_heads mamba_n_heads n_mamba_heads", 0)
    heads = heads or (_number(config, "num_heads") if kind == "mamba2" else 0)
    if not heads:  # Mamba 1
        own = "intermediate_size" if kind in ("mamba", "falcon_mamba") else ""
        width = _number(config, own, _number(config, "mamba_expand", 2) * hidden)
        return State(width, kernel, width * state)
    size = _number(config, "mamba_head_dim mamba_d_head mamba_headdim head_dim")
    is_wide = kind == "nemotron_h" and config.get("mamba_ssm_cache_dtype", "float32") == "float32"
    groups = _number(config, "n_groups mamba_n_groups mamba_ngroups", 1)
    width = _number(config, "mamba_d_ssm", heads * size)
    return State(width, kernel, heads * size * state, 4 if is_wide else 2, groups, state, kept=3)
