"""The page itself: its template, scripts and styles."""
