"""Kills and stops each process of a running application, and counts what its clients saw of it."""
