"""The demonstration model that ships inside the package."""

from pathlib import Path


def embedded_model_path() -> Path:
    """Return the folder that holds the embedded model's weights and tokenizer."""
    return Path(__file__).resolve().parent / "tideserve_tiny"
