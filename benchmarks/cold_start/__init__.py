"""From zero to the first token, phase by phase, beside bare `vllm serve`; see README.md."""
