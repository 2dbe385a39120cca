"""What models write in the formats of vLLM's parsers, and a tokenizer with the marks of all formats."""

import json
import re
from pathlib import Path

from transformers import AutoTokenizer

from serve_app.weights import embedded_model_path

_BAR = "\uff5c"  # which looks like a bar of ASCII
_ARGUMENTS = '{"city": "Berlin am See", "days": 3}'
_CALL = '{"name": "get_weather", "arguments": {"city": "Berlin am See", "days": 3}}'
_NEXT_CALL = '{"name": "get_weather", "arguments": {"city": "Nice", "days": 12}}'
_PYTHON = 'get_weather(city="Berlin am See", days=3)'
_TAGGED = (
    "I look.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nBerlin am See\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
)
_KEYED = (
    "get_weather\n<arg_key>city</arg_key>\n<arg_value>Berlin am See</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"
)
_INVOKED = (
    '<invoke name="get_weather">\n<parameter name="city">Berlin am See</parameter>\n'
    '<parameter name="days">3</parameter>\n</invoke>'
)
_HERMES = f"I look.\n<tool_call>\n{_CALL}\n</tool_call>\n<tool_call>\n{_NEXT_CALL}\n</tool_call>"
_THOUGHT = "<think>Which city?\nBerlin.</think>\n\nIt rains in Berlin."


def _deepseek(calls: str, space: str = "") -> str:
    """A call in DeepSeek's markup."""
    tag, end = f"<{_BAR}DSML{_BAR}{space}", f"</{_BAR}DSML{_BAR}{space}"
    return (
        f'I look.\n\n{tag}{calls}>\n{tag}invoke name="get_weather">\n'
        f'{tag}parameter name="city" string="true">Berlin am See{end}parameter>\n'
        f'{tag}parameter name="days" string="false">3{end}parameter>\n{end}invoke>\n{end}{calls}>'
    )


def _minimax(mark: str = "]<]minimax[>[") -> str:
    return (
        f'I look.{mark}<tool_call>\n{mark}<invoke name="get_weather">{mark}<city>Berlin am See{mark}</city>'
        f"{mark}<days>3{mark}</days>{mark}</invoke>\n{mark}</tool_call>"
    )


def _plamo(**inner: str) -> str:
    """Texts, each between its marks."""
    return "".join(
        f"<|plamo:begin_{name}:plamo|>{text}<|plamo:end_{name}:plamo|>" for name, text in inner.items()
    )


TOOL_CALLS = {
    "apertus": f'I look. <|tools_prefix|>[{{"get_weather": {_ARGUMENTS}}}]<|tools_suffix|>',
    "deepseek_v3": "I look.<|tool▁calls▁begin|><|tool▁call▁begin|>function<|tool▁sep|>get_weather\n"
    f"```json\n{_ARGUMENTS}\n```<|tool▁call▁end|><|tool▁calls▁end|>".replace("|", _BAR),
    "deepseek_v31": "I look.<|tool▁calls▁begin|><|tool▁call▁begin|>get_weather<|tool▁sep|>"
    f"{_ARGUMENTS}<|tool▁call▁end|><|tool▁calls▁end|>".replace("|", _BAR),
    "deepseek_v32": _deepseek("function_calls"),
    "deepseek_v4": _deepseek("tool_calls"),
    "deepseek_v41": _deepseek("calls", " "),
    "dots": f"I look.\n<dots_function_call>\n{_INVOKED}\n</dots_function_call>",
    "ernie45": f"I look.\n</think>\n\n\n<tool_call>\n{_CALL}\n</tool_call>\n",
    "functiongemma": "I look.<start_function_call>call:get_weather{city:<escape>Berlin am See<escape>,"
    "days:<escape>3<escape>}<end_function_call>",
    "gemma4": 'I look.<|tool_call>call:get_weather{city:<|"|>Berlin am See<|"|>,days:3}<tool_call|>',
    "gigachat3": f"I look.<|function_call|>{_CALL}",
    "glm45": f"I look.\n<tool_call>{_KEYED}\n<tool_call>{_KEYED}",
    "glm47": f"I look.\n<tool_call>{_KEYED}",
    "granite": f"<|tool_call|>[{_CALL}, {_NEXT_CALL}]",
    "granite-20b-fc": f"<function_call> {_CALL}<function_call> {_NEXT_CALL}",
    "granite4": _HERMES,
    "hermes": _HERMES,
    "hf": _HERMES,
    "hunyuan_a13b": f"<tool_calls>[{_CALL}, {_NEXT_CALL}]</tool_calls>",
    "hy_v3": f"I look.\n<tool_calls>\n<tool_call>{_KEYED.replace('er', 'er<tool_sep>', 1)}\n</tool_calls>",
    "hy_v4": f"I look.\n<tool_calls>\n<tool_call>{_KEYED}\n</tool_calls>",
    "inkling": "<|content_text|>I look.<|end_message|><|message_model|>get_weather"
    f'<|content_invoke_tool_json|>{{"name": "get_weather", "args": {_ARGUMENTS}}}<|end_message|>',
    "internlm": f'I look.<|action_start|><|plugin|>\n{{"name": "get_weather", "parameters": {_ARGUMENTS}}}'
    "<|action_end|>",
    "jamba": f"I look.<tool_calls>[{_CALL}, {_NEXT_CALL}]</tool_calls>",
    "k2_horizon": "<ifm|tool_calls><ifm|tool_call>get_weather<ifm|arg_key>city</ifm|arg_key>"
    "<ifm|arg_value>Berlin am See</ifm|arg_value></ifm|tool_call></ifm|tool_calls>",
    "kimi_k2": "I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
    f"<|tool_call_argument_begin|>{_ARGUMENTS}<|tool_call_end|><|tool_calls_section_end|>",
    "kimi_k3": "<|open|>response<|sep|>I look.<|close|>response<|sep|><|open|>tools<|sep|>"
    '<|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" type="string"<|sep|>'
    "Berlin am See<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
    "lfm2": f"I look.<|tool_call_start|>[{_PYTHON}]<|tool_call_end|>",
    "ling3": f"I look.\n<tool_call>{_KEYED}",
    "llama3_json": f"{_CALL}; {_NEXT_CALL}",
    "llama4_json": _CALL,
    "llama4_pythonic": f"<|python_start|>[{_PYTHON}, {_PYTHON}]<|python_end|>",
    "longcat": f"I look.\n<longcat_tool_call>\n{_CALL}\n</longcat_tool_call>",
    "mimo": _TAGGED,
    "minicpm5": '<function name="get_weather"><param name="city">Berlin am See</param>'
    '<param name="days">3</param></function>',
    "minimax_m2": f"I look.<minimax:tool_call>\n{_INVOKED}\n</minimax:tool_call>",
    "minimax_m3": _minimax(),
    "mistral": f"I look.[TOOL_CALLS]get_weather[ARGS]{_ARGUMENTS}",
    "muse_glimmer": " to=self<|message|>Which city?<|eom|><|start|>assistant to=get_weather<|message|>"
    '<atem:function_calls>\n<atem:invoke name="get_weather">\n'
    '<atem:parameter name="city">Berlin am See</atem:parameter>\n</atem:invoke>\n'
    "</atem:function_calls><|eom|><|start|>assistant to=user<|message|>It rains.<|eot|>",
    "olmo3": f"<function_calls>{_PYTHON}\n{_PYTHON}</function_calls>",
    "phi4_mini_json": f"functools[{_CALL}]",
    "plamo3": _plamo(
        tool_requests=_plamo(
            tool_request=_plamo(
                tool_name="get_weather", tool_arguments=f"<|plamo:constrain|>json<|plamo:msg|>{_ARGUMENTS}"
            )
        )
    ),
    "poolside_v1": f"I look.\n<tool_call>{_KEYED}",
    "pythonic": f"[{_PYTHON}, {_PYTHON}]",
    "qwen3_coder": f"{_TAGGED}\n{_TAGGED}",
    "qwen3_json": _HERMES,
    "qwen3_xml": _TAGGED,
    "seed_oss": _TAGGED.replace("tool_call", "seed:tool_call"),
    "step3": "I look.<|tool_calls_begin|><|tool_call_begin|>function<|tool_sep|>"
    '<steptml:invoke name="get_weather"><steptml:parameter name="city">Berlin am See</steptml:parameter>'
    "</steptml:invoke><|tool_call_end|><|tool_calls_end|>".replace("|", _BAR),
    "step3p5": _TAGGED,
    "xlam": f"[{_CALL}, {_NEXT_CALL}]",
}
"""An answer with calls of tools, by the name of a parser of tool calls."""

REASONING = {
    **dict.fromkeys(
        (
            *("deepseek_r1", "deepseek_v3", "deepseek_v4", "deepseek_v41", "ernie45", "glm45", "glm47"),
            *("granite_thinking_parser", "hf", "holo2", "hy_v3", "hy_v4", "kimi_k2", "ling3", "mimo"),
            *("minicpmv", "minimax_m2", "minimax_m2_append_think", "nemotron_v3", "olmo3", "poolside_v1"),
            *("qwen3", "step3", "step3p5"),
        ),
        _THOUGHT,
    ),
    "gemma4": "<|channel>thought\nWhich city? Berlin.<channel|>It rains in Berlin.",
    "granite": "Here is my thought process: Which city? Berlin. Here is my response: It rains in Berlin.",
    "hunyuan_a13b": "<think>\nWhich city? Berlin.\n</think>\n<answer>\nIt rains in Berlin.\n</answer>",
    "inkling": "<|content_thinking|>Which city? Berlin.<|end_message|><|message_model|>"
    "<|content_text|>It rains in Berlin.<|end_message|>",
    "k2_horizon": "<ifm|think>Which city? Berlin.</ifm|think>It rains in Berlin.",
    "kimi_k3": "<|open|>think<|sep|>Which city? Berlin.<|close|>think<|sep|>"
    "<|open|>response<|sep|>It rains in Berlin.<|close|>response<|sep|>",
    "minimax_m3": "<mm:think>Which city? Berlin.</mm:think>It rains in Berlin.",
    "mistral": "[THINK]Which city? Berlin.[/THINK]It rains in Berlin.",
    "muse_glimmer": " to=self<|message|>Which city? Berlin.<|eom|><|start|>assistant to=user<|message|>"
    "It rains in Berlin.<|eot|>",
    "plamo3": _plamo(think="Which city? Berlin.") + "It rains in Berlin.",
    "seed_oss": _THOUGHT.replace("think", "seed:think"),
}
"""An answer with reasoning, by the name of a reasoning parser."""

NOT_HERE = {
    "cohere_command3": "needs the package cohere_melody",
    "cohere_command4": "needs the package cohere_melody",
    "openai": "needs the vocabulary of Harmony, which is downloaded",
    "openai_gptoss": "needs the vocabulary of Harmony, which is downloaded",
}
"""The other parsers, and why these tests cannot run them."""

_RESPONSE_TEMPLATE = {
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "thinking": {"open": "<think>", "close": "</think>"},
        "tool_calls": {
            "open": "<tool_call>",
            "close": "</tool_call>",
            "content": "json",
            "repeats": True,
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {},
    },
}
"""What the parser `hf` reads in the configuration of a tokenizer."""

_MARK = re.compile(r'<\|"\|>|</?\|?[^<>\s="]+\|?>|\[/?[A-Z_]+\]|\]<\]minimax\[>\[')
_UNUSED_MARKS = (
    *("<|python_tag|>", "<assistant>", "<0x0A>", "<response>", "</response>"),
    *("</", "Ġ</", "think"),  # `olmo3` looks for the parts of a mark in the vocabulary
)
"""Marks that parsers look for in a vocabulary, and that are in no text here."""


def write_model(folder: Path) -> str:
    """Write the embedded model's configuration and its tokenizer with the marks of all formats."""
    source = embedded_model_path()
    for path in source.iterdir():
        if path.is_file() and path.suffix != ".safetensors":
            (folder / path.name).write_bytes(path.read_bytes())
    tokenizer = AutoTokenizer.from_pretrained(source)
    texts = (*TOOL_CALLS.values(), *REASONING.values())
    tokenizer.add_tokens(sorted({mark for text in texts for mark in _MARK.findall(text)} | {*_UNUSED_MARKS}))
    tokenizer.save_pretrained(folder)
    for name, key, value in (
        ("config.json", "vocab_size", len(tokenizer)),
        ("tokenizer_config.json", "response_template", _RESPONSE_TEMPLATE),
    ):
        document = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**document, key: value}))
    return str(folder)
