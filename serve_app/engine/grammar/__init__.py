"""Grammars that clients send, tried in a process of their own before the engine core sees them."""
