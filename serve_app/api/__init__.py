"""The HTTP surface, written once against `EngineClient`; nothing here knows of Ray or vLLM."""
