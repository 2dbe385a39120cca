"""Names that processes of one application know each other by."""

INGRESS = "Ingress"
"""The Ray Serve deployment of the ingress."""
