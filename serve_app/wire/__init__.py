"""Contracts between processes: the data plane's messages, signals, and documents in Ray's store."""
