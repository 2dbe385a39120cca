"""Processes that start with everything imported, because they are forked from their node's zygote."""
