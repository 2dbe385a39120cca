"""Routings of the ingress beside those of peers, on traces that tell which prompts share prefixes."""
