"""The engine deployment: one vLLM `AsyncLLM` per GPU replica."""
