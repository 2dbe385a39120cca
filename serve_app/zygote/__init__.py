"""Processes that begin with everything imported: forked from a warm one, the zygote of their node."""
