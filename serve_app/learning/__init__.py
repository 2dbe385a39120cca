"""Observing and learning: from the reports of a model to the inputs of a decision."""
