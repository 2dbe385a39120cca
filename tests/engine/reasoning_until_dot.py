"""A reasoning parser for the embedded model: what it says up to its first full stop is its reasoning."""

from vllm.reasoning import ReasoningParserManager
from vllm.reasoning.deepseek_r1_reasoning_parser import DeepSeekR1ReasoningParser

PARSER = "until_dot"


@ReasoningParserManager.register_module(PARSER, force=True)
class ReasoningUntilDot(DeepSeekR1ReasoningParser):
    """Reasoning begins with the prompt's last mark of a turn."""

    start_token = "<|im_start|>"
    end_token = "."
