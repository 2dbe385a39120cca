"""The `tideserve` command."""
