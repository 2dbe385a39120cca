"""How a command says that it could not do what it was asked."""

from __future__ import annotations


class CommandError(Exception):
    """One line for the user; the command ends with exit status 1."""
