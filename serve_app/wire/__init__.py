"""What two processes agree on: signals, headers, documents in Ray's store."""
