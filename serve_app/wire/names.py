"""Names that processes of one application know each other by."""

from __future__ import annotations

INGRESS = "Ingress"
"""The Ray Serve deployment of the ingress."""
