"""How fast a replay is, and how much memory it takes. See README.md."""
