"""The demonstration model and its adapter, which ship inside the package."""

from pathlib import Path


def embedded_model_path() -> Path:
    """Return the folder that holds the embedded model's weights and tokenizer."""
    return Path(__file__).resolve().parent / "tideserve_tiny"


def embedded_adapter_path() -> Path:
    """Return the folder that holds the embedded model's LoRA adapter."""
    return Path(__file__).resolve().parent / "tideserve_tiny_adapter"
