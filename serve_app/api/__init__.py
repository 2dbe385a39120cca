"""The HTTP API over `EngineClient`, which does not depend on Ray or vLLM."""
