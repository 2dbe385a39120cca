"""Tideserve: LLM serving on Ray Serve and vLLM, from zero to N GPU replicas."""

__version__ = "0.1.0"
