"""Load generators compared on a server whose delays are known."""
