"""Measuring one engine replica of a running application, for a profile that replays go by."""
