"""Measurements of Tideserve, and of it beside others."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
