"""Trains the embedded demonstration model from scratch on text from its own generator."""
