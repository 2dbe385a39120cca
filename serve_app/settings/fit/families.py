"""vLLM's parsers of tool calls and of reasoning for each family of models.

Sources: vLLM's recipes (github.com/vllm-project/recipes, August 2026), `docs/features/tool_calling.md` of
vLLM, and the registries in `vllm/tool_parsers/__init__.py` and `vllm/reasoning/__init__.py`.
"""

from typing import Any

_TABLE = """
qwen2 qwen2_moe qwen2_vl qwen2_5_vl | <function==qwen3_coder <tool_call>=hermes | <think>=deepseek_r1
qwen3 qwen3_moe qwen3_next qwen3_vl qwen3_vl_moe | <function==qwen3_coder <tool_call>=hermes | <think>=qwen3
qwen3_5 qwen3_5_moe | qwen3_coder | qwen3
llama | <tool_call>=hermes [TOOL_CALLS]=mistral ipython=llama3_json | <think>=deepseek_r1
llama4 | llama4_pythonic |
mistral mistral3 ministral3 mistral4 mixtral | [TOOL_CALLS]=mistral | [THINK]=mistral
deepseek_v2 deepseek_v3 | tool_calls_section=kimi_k2 ```json=deepseek_v3 tool▁call=deepseek_v31 | thinking=deepseek_v3 <think>=deepseek_r1
deepseek_v32 | deepseek_v32 | deepseek_v3
kimi_k2 kimi_k25 | kimi_k2 | <think>=kimi_k2
kimi_linear | tool_calls_section=kimi_k2 |
gpt_oss | openai | openai_gptoss
glm4_moe glm4v_moe | glm45 | glm45
glm_moe_dsa | glm47 | glm45
minimax_m2 | minimax_m2 | minimax_m2
minimax_m3 minimax_m3_vl | minimax_m3 | minimax_m3
nemotron_h | <function==qwen3_coder | <function==nemotron_v3
gemma4 gemma4_text | gemma4 | gemma4
granite | tool_call=granite |
granitemoehybrid | <tool_call>=granite4 |
phi3 | <|tool|>=phi4_mini_json |
olmo3 | <function_calls>=olmo3 | <think>=olmo3
lfm2 lfm2_moe | tool=lfm2 | <think>=qwen3
seed_oss | seed_oss | seed_oss
hunyuan_v1_moe | hunyuan_a13b | hunyuan_a13b
ernie4_5_moe | ernie45 | <think>=ernie45
mimo_v2_flash | qwen3_xml | qwen3
step3p5 | step3p5 | step3p5
jamba | tool=jamba |
internlm2 | tool=internlm |
cohere2 | tool=cohere_command3 | thinking=cohere_command3
"""  # noqa: E501
"""Types of models | parsers of tool calls | parsers of reasoning. `mark=parser` is for a chat template that
contains the mark; the first mark found decides."""


def parsers_of(types: tuple[str, ...], template: str | None) -> tuple[str | None, str | None, str]:
    """Return the parsers of tool calls and reasoning, None for none, and what they follow from."""
    families = {name: cells[1:] for cells in parser_table() for name in cells[0]}
    family = next((families[name] for name in types if name in families), None)
    if template is None or family is None:
        return None, None, f"the parsers of {types[-1]!r} are not known" if template else "no chat template"
    tools, reasoning = (next((parser for mark, parser in cell if mark in template), None) for cell in family)
    return tools, reasoning, f"the chat template, and vLLM's recipe for {types[0]}"


def parser_table() -> list[list[Any]]:
    """Return the types of models of each row, and pairs of mark and parser for tool calls and reasoning."""
    rows = [line.split(" | ") for line in _TABLE.replace(" |\n", " | \n").strip("\n").split("\n")]
    return [
        [row[0].split(), *([tuple(each.rpartition("=")[::2]) for each in cell.split()] for cell in row[1:])]
        for row in rows
    ]
