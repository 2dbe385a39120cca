"""The assets of the HTML page."""
