"""Grammars that clients send, compiled in processes of their own before the engine core sees them."""
