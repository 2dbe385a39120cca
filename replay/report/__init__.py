"""Reports of replays: a JSON document, tables for a terminal, and an HTML page."""
