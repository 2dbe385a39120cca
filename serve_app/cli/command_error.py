"""The error of a command that could not be carried out."""


class CommandError(Exception):
    """One line for the user; the command ends with exit status 1."""


class RefusedError(CommandError):
    """A server's answer that it would give to another attempt as well."""
