"""How a measurement says that it cannot be made."""

from __future__ import annotations


class MeasurementError(Exception):
    """One sentence for the user, with what to do about it."""
