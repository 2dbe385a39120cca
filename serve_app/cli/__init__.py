"""The `tideserve` command."""


class CommandError(Exception):
    """One line for the user, about a command that could not be carried out: it ends with exit status 1."""


class RefusedError(CommandError):
    """A server's answer that it would give to another attempt as well."""
